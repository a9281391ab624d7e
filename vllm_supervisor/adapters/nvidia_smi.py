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
_DRIVER = re.compile(r"\d+(?:\.\d+)*")
_UNTOLD = re.compile(r"\[[\w /]+\]")
"""What nvidia-smi prints for what it does not know: `[N/A]`, `[Unknown Error]`."""


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
        told = _printable(f"{error.stdout or ''} {error.stderr or ''}")
        return Host(trouble=f"nvidia-smi says: {told[:200] or f'status {error.returncode}'}")
    except subprocess.TimeoutExpired as error:
        return Host(trouble=f"nvidia-smi did not answer within {error.timeout:g} s; does `nvidia-smi -L` end?")
    except (OSError, subprocess.SubprocessError) as error:
        return Host(trouble=f"nvidia-smi cannot be asked: {(getattr(error, 'strerror', None) or str(error)).lower()}")
    return _host(rows, header)


def _host(rows: list[list[str]], header: str) -> Host:
    sound = [row for row in rows if _DRIVER.fullmatch(row[1]) or _UNTOLD.fullmatch(row[1])]
    if rows and not sound:
        return Host(trouble=f"nvidia-smi prints no list of GPUs: {_printable(','.join(rows[0]))[:60]!r}")
    found = _HEADER_CUDA.search(header)
    cuda = (int(found[1]), int(found[2])) if found else None
    driver = next((row[1] for row in sound if _DRIVER.fullmatch(row[1])), "of unknown version" if sound else "")
    if sound and cuda is None and not _DRIVER.fullmatch(driver):
        return Host(trouble=f"nvidia-smi does not tell the version of its driver, but {sound[0][1]}")
    cards = (Card(_printable(row[0]), _capability(row[2]) if len(row) > 2 else None) for row in sound)  # noqa: PLR2004 - fields
    return Host(tuple(cards), driver, cuda)


def _printable(text: str) -> str:
    """Return text on one line, without what a terminal would take for orders."""
    return " ".join("".join(char if char.isprintable() and char != "\ufffd" else " " for char in text).split())


def _query(*fields: str) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")


def _rows(text: str) -> list[list[str]]:
    """Split the lines that have a name and a driver; "No devices were found" is none."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) > 1]


def _capability(text: str) -> tuple[int, int] | None:
    found = _CAPABILITY.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None
