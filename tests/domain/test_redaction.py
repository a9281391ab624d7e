"""Secrets that nobody told us of are found by their form and by the names before them."""

import time

import pytest

from vllm_supervisor.domain.redaction import redacted

PEM_BEGINS = "-----BEGIN PRIVATE KEY-----\n"
KEY = "s3cr3t-Value+0/1="


@pytest.mark.parametrize(
    "shape",
    [
        "args: Namespace(host='0.0.0.0', api_key='{}', x=1)",
        "hf_token='{}'",
        "hf_token={}, revision=None",
        "ssl_keyfile_password='{}'",
        "aws_session_token: '{}'",
        "api_key: Optional[str] = '{}'",
        '    token: str | None = "{}",',
        "api_key=SecretStr('{}')",
        "password=b'{}'",
        "vllm serve m --api-key {} --port 1",
        "vllm serve m --hf-token={}",
        "['serve', '--api-key', '{}']",
        '["--api-key", "{}"]',
        "export AWS_SECRET_ACCESS_KEY={}",
        "AWS_SECRET_ACCESS_KEY: {}",
        "WANDB_API_KEY='{}' vllm serve",
        "DB_PASS={}",
        "PGPASSWORD={} psql",
        "AZURE_STORAGE_CONNECTION_STRING={}",
        '{{"headers": {{"x-api-key": "{}"}}}}',
        '"{{\\"clientSecret\\": \\"{}\\"}}"',
        "'Authorization': 'Basic {}'",
        'curl -H "Authorization: Bearer {}" http://x',
        "authorization: {}",
        "apikey='{}', x=1",
        "db_pass='{}'",
        '{{"connectionString": "{}"}}',
        "İstanbul: api_key='{}'",
        "sent Bearer {} upstream",
        "https://b.s3.amazonaws.com/w?X-Amz-Date=1&X-Amz-Signature={}&x=1",
        "https://a.blob.core.windows.net/c?sv=1&sig={}",
        "https://g/v1?key={}",
        "(EngineCore pid=8) ERROR 05-01 10:00:00 [x.py:1] token = '{}'",
    ],
)
def test_a_secret_by_its_name(shape: str) -> None:
    """However vLLM, Python, a shell, JSON, HTTP or a URL writes it; what stands around it stays."""
    assert redacted(shape.format(KEY)) == shape.format("***")


def test_several_at_once() -> None:
    """All of a list is hidden, and a user with the password."""
    assert redacted(f"'api_key': ['{KEY}', '{KEY}'], x=1") == "'api_key': [***], x=1"
    assert redacted(f'Namespace(api_key=["{KEY}"])') == "Namespace(api_key=[***])"
    assert redacted("proxy http://user:pass-word@proxy:3128/") == "proxy http://***@proxy:3128/"
    assert redacted("redis://:p@ss-word@h:1") == "redis://***@h:1"
    assert redacted("curl --proxy-user me:pass-word@proxy.example") == "curl --proxy-user ***@proxy.example"


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("hf_" + "aBcD1234" * 4, id="hub"),
        pytest.param("sk-proj-abcdefgh1234", id="vendor"),
        pytest.param("ghp_" + "a1B2" * 9, id="forge"),
        pytest.param("AKIA" + "ABCD1234" * 2, id="cloud"),
        pytest.param("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl-_x", id="web token"),
    ],
)
def test_a_secret_by_its_form(secret: str) -> None:
    """Wherever it stands."""
    assert redacted(f"cannot use {secret}: denied") == "cannot use ***: denied"


def test_a_secret_that_is_found_twice() -> None:
    """By its name and by its form: it is hidden once, whole."""
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
    assert redacted(f"Authorization: Bearer {token} x") == "Authorization: Bearer *** x"
    assert redacted(f"hf_token='hf_{'aB1' * 9}+{KEY}', x=1") == "hf_token='***', x=1"


def test_a_private_key() -> None:
    """In lines, with a log's prefix before each, or in one with escapes; what comes after it stays."""
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    lines = f"{begin}\n(W pid=1) {body}\n{body}\n(W pid=1) c2hvcnQ=\n{end}\nEngine core failed"
    assert redacted(lines) == f"{begin}\n(W pid=1) ***\n***\n(W pid=1) ***\n{end}\nEngine core failed"
    assert redacted(f"k = {begin}\\n{body}\\n{end} x") == f"k = {begin}***{end} x"
    assert body not in redacted(f"{begin}\n{body}\n{body}\nits end is cut off")


@pytest.mark.parametrize(
    "line",
    [
        "max_tokens=100 max_num_batched_tokens=8192 num_tokens: 5",
        "SamplingParams(stop_token_ids=[2], max_tokens='100', prompt_logprobs=None)",
        "tokenizer='meta-llama/L', tokenizer_mode=auto, skip_tokenizer_init=False, tokenizer_revision=None",
        "eos_token='</s>', 'pad_token': '<|endoftext|>', bos_token_id=1, unk_token: <unk>",
        "Avg prompt throughput: 5.0 tokens/s, GPU KV cache usage: 3.0%, Prefix cache hit rate: 0.0%",
        "GPU KV cache size: 15,248 tokens",
        "api_key=None, hf_token=None, ssl_keyfile='/k.pem', 'api_key': [], hf_token=''",
        "KeyError: 'model.layers.0.self_attn.k_proj.weight'",
        "Unexpected key(s) in state_dict: 'lm_head.weight'. Missing keys: ['a']",
        "num_key_value_heads=8 key_cache.shape=torch.Size([1]) cache_key=abc123 sort_key='x'",
        "vllm: error: argument --api-key: expected at least one argument",
        "usage: vllm serve [--api-key API_KEY [API_KEY ...]] [--hf-token [HF_TOKEN]]",
        "File hf_api.py, in hf_raise_for_status, hf_overrides={} hf_quantization_config hf_transformers",
        "image vllm/vllm-openai:v0.10.0@sha256:0123456789abcdef",
        "export HF_TOKEN=",
        "api_key=17, token='</s>' hf_token=<unset>",
        "vllm serve m --api-key $API_KEY --port 1",
        "connection=keep-alive, connection_timeout='5 s'",
        "Bad token: 401. A bearer token is needed; set the token and log in.",
        "monkey=patched keyboard: german bypass=yes pass: first secretary",
        "Invalid credentials in Authorization header",
        "TOKENIZERS_PARALLELISM=false VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    ],
)
def test_what_is_no_secret_stays_readable(line: str) -> None:
    """What vLLM prints about tokens and keys is what a diagnosis rests on."""
    assert redacted(line) == line


PIECES = (
    "key",
    "key=",
    "a",
    "key='",
    "key=((",
    "token: ",
    "eyJ",
    "eyJaaaaaa.",
    "a:",
    "a:@",
    "://",
    "?key=",
    "a-",
    "hf_",
)


@pytest.mark.parametrize("piece", [*PIECES, "bearer ", "key = \\'", PEM_BEGINS])
def test_it_takes_time_in_proportion(piece: str) -> None:
    """No text makes it slow: eight times as much takes about eight times as long, not sixty-four."""

    def seconds(size: int) -> float:
        """Return the best of three: a collection of garbage falls into one of them, at the most."""
        text = piece * (size // len(piece))
        spent = []
        for _ in range(3):
            begun = time.thread_time()
            redacted(text)
            spent.append(time.thread_time() - begun)
        return min(spent)

    assert seconds(128_000) < 24 * max(seconds(16_000), 0.002)
