"""What only talks to a daemon starts in the time that Python takes to start."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.fake_daemon import fake_daemon

HEAVY = {
    "anyio", "asyncio", "concurrent", "ctypes", "dataclasses", "difflib", "email", "h11", "http", "httpx", "inspect",
    "logging", "pathlib", "prometheus_client", "psutil", "pydantic", "rich", "shutil", "ssl", "structlog", "subprocess",
    "tempfile", "urllib", "uvloop", "yaml",
}  # fmt: skip
PROGRAM = """
import sys
before = set(sys.modules)
from vllm_supervisor.cli.main import main
status = main(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}), file=sys.stderr)
print(*sorted(name for name in sys.modules if name.startswith("vllm_supervisor")), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["status"],
        ["status", "--json"],
        ["status", "--help"],
        ["wait"],
        ["start"],
        ["logs"],
        ["events"],
        ["advise"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_clients_import_nothing_heavy(tmp_path: Path, argv: list[str]) -> None:
    """Each of those costs milliseconds of the 40 that `status` may take."""
    root = str(Path(__file__).parents[2])
    with fake_daemon(tmp_path) as daemon:
        daemon.advice = {"advice": {"verdict": "healthy", "confidence": "high", "target_concurrency": 3}, "now": None}
        # -S: what the environment's own hooks import is not ours.
        command = [sys.executable, "-S", "-c", PROGRAM, *argv, "--socket", daemon.path]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": root})
    everything, ours = done.stderr.splitlines()
    allowed = {"shutil"} if "--help" in argv else set()
    assert set(everything.split()) & (HEAVY - allowed) == set()
    assert {name.split(".")[1] for name in ours.split() if "." in name} == {"cli", "errors"}
