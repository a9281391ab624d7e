"""A secret in a configuration that everybody can read."""

from pathlib import Path

import pytest

from vllm_supervisor.config.load import load

HEAD = "engine:\n  vllm:\n    model: m\n    log_file: journal\n"
ENVIRON = {"HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/tmp", "FOO": "plainkey123", "PATH": "/bin"}


def warnings(tmp_path: Path, body: str, mode: int, *sets: str) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(HEAD + body)
    path.chmod(mode)
    return [warning for warning in load(path, sets=sets, environ=ENVIRON).warnings if "can read" in warning]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("    api_key: plainkey123\n", "engine.vllm.api_key"),
        ("    env: {HF_TOKEN: plainkey123}\n", "engine.vllm.env.HF_TOKEN"),
        ("    extra_args: [--ssl-keyfile-password, plainkey123]\n", "engine.vllm.extra_args"),
        ("    extra_args: [--ssl-keyfile-password=plainkey123]\n", "engine.vllm.extra_args"),
    ],
)
def test_a_secret_for_everybody_to_read_is_warned_about(tmp_path: Path, body: str, key: str) -> None:
    """With file, line, key and what to do, and never with the secret; not where the file is closed to others."""
    [warning] = warnings(tmp_path, body, 0o644)
    assert warning.startswith(f"{tmp_path}/c.yaml:5: {key}")
    assert f"chmod 640 {tmp_path}/c.yaml" in warning
    assert "plainkey" not in warning
    assert warnings(tmp_path, body, 0o640) == []


@pytest.mark.parametrize(
    "body",
    [
        "    api_key: NONE\n",
        "    api_key: ${FOO}\n",
        "    env: {HF_HOME: /models}\n",
        "    extra_args: [--max-num-batched-tokens, '2048', --tokenizer, other]\n",
    ],
)
def test_what_is_no_secret_or_stands_elsewhere_is_not(tmp_path: Path, body: str) -> None:
    """References are what the remedy asks for."""
    assert warnings(tmp_path, body, 0o644) == []


def test_a_key_from_the_command_line_is_not_the_file_s(tmp_path: Path) -> None:
    """It hides what the file holds, too: the file's own key is not used then."""
    assert warnings(tmp_path, "    port: 8000\n", 0o644, "engine.vllm.api_key=plainkey123") == []
