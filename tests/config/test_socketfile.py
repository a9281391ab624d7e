"""The control socket that a configuration names, read without the rest of it."""

from pathlib import Path

import pytest

from vllm_supervisor.config.socketfile import UNCLEAR, configured_socket, mentioned_sockets


@pytest.mark.parametrize(
    ("text", "socket"),
    [
        ("control: {socket: /run/a.sock}", "/run/a.sock"),
        ("control: {socket: '${PLACE}/a.sock'}", "/there/a.sock"),
        ("control: {mode: '0600'}", None),
        ("engine: {}", None),
        ("control: {socket: 7}", UNCLEAR),
        ("control: {socket: ''}", UNCLEAR),
        ("control: {socket: '${UNSET}/a.sock'}", UNCLEAR),
        ("control: {socket: '${credential:place}'}", UNCLEAR),
        ("control: {socket: ~nobody-of-this-name/a.sock}", UNCLEAR),
        ("control: [", UNCLEAR),
        ("control: 7", UNCLEAR),
    ],
)
def test_what_a_file_says(tmp_path: Path, text: str, socket: str | None) -> None:
    """Its value; nothing where the default holds; that it is unclear, where the full reader has to find words."""
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert configured_socket(file, {"PLACE": "/there"}) == socket


def test_what_a_file_that_is_no_yaml_mentions(tmp_path: Path) -> None:
    """Each place once, in order, at most five; nothing of a file that cannot be read."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "control: [\n  socket: /a\n socket: '/a'\nsocket: ${UNSET}\nsocket: ${PLACE}/b\n"
        + "\n".join(f"socket: /{n}" for n in "cdefg")
    )
    assert mentioned_sockets(file, {"PLACE": "/there"}) == ["/a", "/there/b", "/c", "/d", "/e"]
    assert mentioned_sockets(tmp_path / "none", {}) == []
    assert mentioned_sockets(tmp_path, {}) == []
