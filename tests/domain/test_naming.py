"""Which names mark a secret: of options, and in what a log prints."""

import pytest

from vllm_supervisor.domain.naming import names_secret_in_text, option_names_secret

SECRET = """
    password passwd passphrase secret db-pass db_pwd api_key apiKey API_KEY hf_token HF_TOKEN hftoken access_token
    accessTokens api_keys auth_tokens refresh_tokens hub_keys my_key key_id key-data keyHex keyBase64 key_base64
    key_pem key_string connection_string aws_access_key_id AWS_SECRET_ACCESS_KEY credentials_json secrets_x
    private_key apikey accountkey sharedkeys user_token token_x bearer_tokens the_token
"""
PLAIN = """
    key keys tokens pass KEY Pass cache_key sort-key key_lines key_cache eos_token bos_token token_id token_ids
    token_count num_tokens max_tokens prompt_tokens output_token next_token special_tokens missing_keys state_keys
    password_file secret_path by_pass pass_rate bypass connection_pool connection tokenizer keyboard monkey TOKENS
    TOKENIZER_MODE MAX_TOKENS generation per_token token_type_ids stop_token_ids token_usage a_key_value
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_a_name_that_marks_a_secret(name: str) -> None:
    """Word by word, in any writing; a variable in capitals as everywhere."""
    assert names_secret_in_text(name, in_prose=False)


@pytest.mark.parametrize("name", PLAIN.split())
def test_a_name_that_marks_none(name: str) -> None:
    """What engines print about keys of a cache and tokens of a text stays readable."""
    assert not names_secret_in_text(name, in_prose=False)


@pytest.mark.parametrize("name", ["token", "--token", "secrets", "credentials", "Token_"])
def test_a_word_of_english_is_a_name_only_where_something_is_assigned(name: str) -> None:
    """`token: ` in a sentence is none, `token=` is; what has more words is one in both."""
    assert names_secret_in_text(name, in_prose=False)
    assert not names_secret_in_text(name, in_prose=True)
    assert names_secret_in_text(f"api_{name}" if "oken" in name else "api_key", in_prose=True)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("--api-key", True),
        ("--hf-token", True),
        ("--hf_token", True),
        ("--ssl-keyfile", False),
        ("--ssl-keyfile-password", True),
        ("--SSL-KEYFILE-PASSPHRASE", True),
        ("--tokenizer-secret", True),
        ("--tokens-passwd", True),
        ("--max-num-batched-tokens", False),
        ("--long-prefill-token-threshold", False),
        ("--return-tokens-as-token-ids", False),
        ("--tokenizer", False),
        ("--model", False),
    ],
)
def test_an_option_of_vllm(name: str, secret: bool) -> None:
    """Its own flags about tokens are none, unless they also say password."""
    assert option_names_secret(name) is secret
