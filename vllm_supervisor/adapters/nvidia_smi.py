"""The cards of this host and what their driver offers, as `nvidia-smi` prints them.

For what must work before anything is installed, so without NVML's Python binding.
"""

import re
import subprocess
from collections.abc import Callable

from vllm_supervisor.domain.torchchoice import Card, Host

Runner = Callable[[tuple[str, ...]], str]
"""Runs a command and returns its standard output; raises OSError or subprocess.SubprocessError where that fails."""

_TIMEOUT = 60.0
"""Seconds. Without the persistence daemon the driver initialises every card first: seconds each."""
_HEADER_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)")
_CAPABILITY = re.compile(r"(\d+)\.(\d+)")


def run(command: tuple[str, ...]) -> str:
    """Run a command for `look`."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=_TIMEOUT)  # noqa: S603 - a fixed command
    return done.stdout


def look(runner: Runner = run) -> Host:
    """Ask nvidia-smi. Never raises: where it cannot be asked, the host has no cards and says why."""
    try:
        try:
            rows = _rows(runner(_query("name", "driver_version", "compute_cap")))
        except subprocess.CalledProcessError:
            # Drivers before 510 do not know the field, and say so by failing.
            rows = _rows(runner(_query("name", "driver_version")))
        header = runner(("nvidia-smi",))
    except FileNotFoundError:
        return Host(trouble="there is no nvidia-smi")
    except subprocess.CalledProcessError as error:
        told = " ".join(f"{error.stdout or ''} {error.stderr or ''}".split())
        return Host(trouble=f"nvidia-smi says: {told[:200] or f'status {error.returncode}'}")
    except (OSError, subprocess.SubprocessError) as error:
        return Host(trouble=f"nvidia-smi cannot be asked: {error}")
    found = _HEADER_CUDA.search(header)
    cards = tuple(Card(row[0], _capability(row[2]) if len(row) > 2 else None) for row in rows)  # noqa: PLR2004 - fields
    return Host(cards, rows[0][1] if rows else "", (int(found[1]), int(found[2])) if found else None)


def _query(*fields: str) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")


def _rows(text: str) -> list[list[str]]:
    """Split the lines that have a name and a driver; "No devices were found" is none."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) > 1]


def _capability(text: str) -> tuple[int, int] | None:
    found = _CAPABILITY.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None
