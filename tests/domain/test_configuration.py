"""Two launches are the same configuration exactly when nothing that matters differs."""

import pytest

from vllm_supervisor.domain.configuration import fingerprint
from vllm_supervisor.domain.spec import MARKER, LaunchSpec

ENV = {"PATH": "/bin", "HF_TOKEN": "x"}
ARGV = ("vllm", "serve", "m")


def spec(argv: tuple[str, ...] = ARGV, **env: str) -> LaunchSpec:
    return LaunchSpec(argv, ENV | env, None, "/dev/null", "127.0.0.1", 8000)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(spec(ARGV, **{MARKER: "id.7"}), id="the marker"),
        pytest.param(spec(SSH_CLIENT="10.0.0.1", TERM="dumb", PWD="/tmp", SHLVL="3", _="/bin/x"), id="a terminal"),
        pytest.param(spec(XDG_SESSION_ID="7", SUDO_USER="me", SYSTEMD_EXEC_PID="12"), id="who started the daemon"),
    ],
)
def test_the_same(other: LaunchSpec) -> None:
    """From whichever shell, by whomever."""
    assert fingerprint(other) == fingerprint(spec())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(spec((*ARGV, "--max-model-len", "10")), id="an argument more"),
        pytest.param(spec(("vllm", "serve m")), id="the same words, otherwise divided"),
        pytest.param(spec(CUDA_VISIBLE_DEVICES="1"), id="another card"),
        pytest.param(spec(HF_TOKEN="y"), id="another token"),
        pytest.param(spec(A="b\0C=d"), id="a variable more"),
    ],
)
def test_another(other: LaunchSpec) -> None:
    """Whatever may decide whether it starts."""
    assert fingerprint(other) != fingerprint(spec())


def test_it_does_not_show_what_is_in_it() -> None:
    """It goes to a file: a digest, nothing else."""
    assert len(fingerprint(spec())) == 64
    assert fingerprint(spec(BYTES="\udcff"))
