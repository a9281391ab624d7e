"""What is shown of a launch, and of text that may quote it, holds no secret."""

import pytest

from vllm_supervisor.domain.masking import Mask
from vllm_supervisor.domain.spec import LaunchSpec

SPEC = LaunchSpec(
    argv=("vllm", "serve", "m", "--hf-token", "tok-on-the-command-line", "--max-num-batched-tokens", "4096"),
    env={
        "VLLM_API_KEY": "k3y!",
        "HF_TOKEN": "token-of-the-hub",
        "DB_PASSWORD": "",
        "KEYMAP": "none",
        "PLAIN": "4096",
        "URL": "http://from-a-credential@host/",
    },
    cwd=None,
    log_file="/dev/null",
    host="127.0.0.1",
    port=8000,
    secrets=("from-a-credential",),
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("api_key='k3y!'", "api_key='***'", id="the key"),
        pytest.param("'hf_token': 'token-of-the-hub'", "'hf_token': '***'", id="a variable with a secret's name"),
        pytest.param("argv: tok-on-the-command-line", "argv: ***", id="the value of an option"),
        pytest.param("x from-a-credential y", "x *** y", id="a credential"),
        pytest.param("Authorization: Bearer abc.def", "Authorization: Bearer ***", id="any bearer"),
        pytest.param("hf_abcdefghijkl", "***", id="by its form"),
        pytest.param("proxy http://me:pass@proxy:1/", "proxy http://***@proxy:1/", id="in a URL"),
        pytest.param("none of 4096 is hidden", "none of 4096 is hidden", id="short words and plain values stay"),
    ],
)
def test_text(text: str, shown: str) -> None:
    """Known secrets and what looks like one are replaced; the rest stays readable."""
    assert Mask(SPEC).text(text) == shown


def test_argv_and_environment() -> None:
    """Names stay, values of secret names go, and so do credentials within other values."""
    mask = Mask(SPEC)
    assert mask.argv()[3:] == ("--hf-token", "***", "--max-num-batched-tokens", "4096")
    env = mask.env()
    assert (env["HF_TOKEN"], env["VLLM_API_KEY"], env["PLAIN"], env["URL"]) == (
        "***",
        "***",
        "4096",
        "http://***@host/",
    )


def test_a_password_of_a_key_file_json_and_urls() -> None:
    """What a name marks as secret is masked, however it is wrapped; a key's file name is none."""
    argv = (
        "vllm", "--ssl-keyfile", "/k.pem", "--ssl-keyfile-password", "pw1", "--ssl-keyfile-password=pw2",
        '{"api_key": "pw3", "n": "1"}', "http://me:pw4@host/x",
    )  # fmt: skip
    shown = Mask(LaunchSpec(argv, {}, None, "/dev/null", "h", 1)).argv()
    assert shown == (
        "vllm", "--ssl-keyfile", "/k.pem", "--ssl-keyfile-password", "***", "--ssl-keyfile-password=***",
        '{"api_key": "***", "n": "1"}', "http://***@host/x",
    )  # fmt: skip


def test_a_secret_within_another() -> None:
    """The longer one goes first: no rest of it stays to be read."""
    spec = LaunchSpec(("vllm",), {}, None, "/dev/null", "h", 1, secrets=("abcd", "abcd-efgh", "efgh"))
    assert Mask(spec).text("abcd-efgh abcd efgh") == "*** *** ***"


LOADER = '{"aws_secret_access_key": "wJal/rXUt+nF=", "region": "eu"}'


@pytest.mark.parametrize(
    "echo",
    [
        pytest.param("config wJal/rXUt+nF= is bad", id="as it is"),
        pytest.param("GET /x?k2=wJal%2FrXUt%2BnF%3D", id="in a URL"),
        pytest.param("GET /x?k2=wJal%2frXUt%2bnF%3d", id="in a URL, small letters"),
        pytest.param("wJal/rXUt%2BnF%3D", id="in a path"),
        pytest.param('my "pass"word is short7', id="a short one, as a word"),
        pytest.param(r"unexpected quo\"te\\slash", id="in JSON"),
        pytest.param(r"unexpected quo\\\"te\\\\slash", id="in JSON within JSON"),
        pytest.param("the second of two: anotherkey2", id="every value of an option"),
        pytest.param("db-user says p%40ssw0rd-url", id="the password of a URL"),
        pytest.param("db-user says p@ssw0rd-url", id="the password of a URL, decoded"),
    ],
)
def test_what_is_masked_in_the_command_is_known_in_the_log(echo: str) -> None:
    """Wherever it stands there: in JSON, in a URL, as one of several values; and however the log quotes it."""
    argv = (
        "vllm", "serve", "m", "--model-loader-extra-config", LOADER, "--api-key", "firstkey11", "anotherkey2",
        "--x", '{"password": "short7", "kv_key_cache": "fp8"}',
    )  # fmt: skip
    env = {"STORE": "redis://db-user:p%40ssw0rd-url@h:1", "MY_SECRET": 'quo"te\\slash'}
    mask = Mask(LaunchSpec(argv, env, None, "/dev/null", "h", 1))
    shown = " ".join(mask.argv()) + " " + mask.text(echo) + " ".join(mask.env().values())
    assert "***" in mask.text(echo)
    for left in ("rXUt", "short7", "slash", "anotherkey2", "ssw0rd"):
        assert left not in shown
    assert '"region": "eu"' in mask.argv()[4]


def test_words_that_stand_for_no_key() -> None:
    """`--api-key EMPTY` must not blank the word wherever it is printed; a short one only where it stands alone."""
    spec = LaunchSpec(("vllm", "--api-key", "EMPTY", "k9x2"), {"KEYMAP": "german"}, None, "/dev/null", "h", 1)
    text = "the queue is EMPTY, german, and block9x2k9x2"
    assert Mask(spec).text(text) == text
    assert Mask(spec).text("key is k9x2.") == "key is ***."
