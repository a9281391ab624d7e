"""What nvidia-smi prints, of several generations, and what it says when it cannot."""

import subprocess
from collections.abc import Callable

import pytest

from vllm_supervisor.adapters.nvidia_smi import look
from vllm_supervisor.domain.torchchoice import Card, Host

HEADER = """Sun Nov 29 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {driver}             Driver Version: {driver}     CUDA Version: {cuda}     |
+-----------------------------------------+------------------------+----------------------+
"""
LATER = "| NVIDIA-SMI 595.10    KMD Version: 595.10     CUDA UMD Version: 13.2     |\n"


def answering(rows: str, header: str, *, knows_capability: bool = True) -> Callable[[tuple[str, ...]], str]:
    """Return a runner that answers as nvidia-smi would."""

    def run(command: tuple[str, ...]) -> str:
        if len(command) == 1:
            return header
        if "compute_cap" in command[1] and not knows_capability:
            raise subprocess.CalledProcessError(2, command, 'Field "compute_cap" is not a valid field to query.', "")
        return rows

    return run


@pytest.mark.parametrize(
    ("rows", "header", "found"),
    [
        (
            "NVIDIA H100 80GB HBM3, 580.65.06, 9.0\nNVIDIA H100 80GB HBM3, 580.65.06, 9.0\n",
            HEADER.format(driver="580.65.06", cuda="13.0"),
            Host((Card("NVIDIA H100 80GB HBM3", (9, 0)),) * 2, "580.65.06", (13, 0)),
        ),
        ("NVIDIA GB10, 595.10, 12.1\n", LATER, Host((Card("NVIDIA GB10", (12, 1)),), "595.10", (13, 2))),
        (
            "Tesla T4, 550.144.03, 7.5\n",
            HEADER.format(driver="550.144.03", cuda="N/A"),
            Host((Card("Tesla T4", (7, 5)),), "550.144.03", None),
        ),
        ("X, 580.1, [N/A]\n", "", Host((Card("X", None),), "580.1", None)),
        ("No devices were found\n", "", Host()),
        (
            "\x1b]0;H100\a, [N/A], 9.0\nX, 580.1, 9.0\n",
            "",
            Host((Card("]0;H100", (9, 0)), Card("X", (9, 0))), "580.1", None),
        ),
        ("X, [N/A], 9.0\n", LATER, Host((Card("X", (9, 0)),), "of unknown version", (13, 2))),
        ("X, [N/A], 9.0\n", "", Host(trouble="nvidia-smi does not tell the version of its driver, but [N/A]")),
        ("\x1b[2J\ufffd,\x00z\n", "", Host(trouble="nvidia-smi prints no list of GPUs: '[2J , z'")),
        ("", "", Host()),
    ],
)
def test_hosts(rows: str, header: str, found: Host) -> None:
    """Cards, driver and the CUDA of the header, old and new; what is not told is left open."""
    assert look(answering(rows, header)) == found


def test_a_driver_too_old_for_the_capability() -> None:
    """Drivers before 510 refuse the field: the rest is asked for again."""
    header = HEADER.format(driver="470.1", cuda="11.4")
    found = look(answering("Tesla K80, 470.1\n", header, knows_capability=False))
    assert found == Host((Card("Tesla K80", None),), "470.1", (11, 4))


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (FileNotFoundError(2, "No such file"), "there is no nvidia-smi"),
        (
            subprocess.CalledProcessError(9, "x", "NVIDIA-SMI has failed because\nit couldn't communicate\n", ""),
            "nvidia-smi says: NVIDIA-SMI has failed because it couldn't communicate",
        ),
        (subprocess.CalledProcessError(9, "x"), "nvidia-smi says: status 9"),
        (subprocess.CalledProcessError(9, "x", "\x1b[2J\ufffd\0junk"), "nvidia-smi says: [2J junk"),
        (subprocess.TimeoutExpired("nvidia-smi", 60), "nvidia-smi did not answer within 60 s"),
        (PermissionError(13, "Permission denied"), "nvidia-smi cannot be asked: permission denied"),
        (OSError(8, "Exec format error"), "nvidia-smi cannot be asked: exec format error"),
    ],
)
def test_it_cannot_be_asked(error: Exception, trouble: str) -> None:
    """The host has no cards then, and says why."""

    def run(_command: tuple[str, ...]) -> str:
        raise error

    found = look(run)
    assert found.cards == ()
    assert found.trouble.startswith(trouble)
