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
    spec = LaunchSpec(("vllm",), {}, None, "/dev/null", "h", 1, secrets=("abcd", "abcd-efgh"))
    assert Mask(spec).text("abcd-efgh abcd") == "*** ***"
