"""A throw-away systemd container that runs the shipped unit, with the simulator as the engine."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.eventually import eventually

REPO = Path(__file__).parents[2]
ENVIRONMENT = REPO / ".venv-dev"

CONFIG = f"""
engine:
  vllm:
    launcher: [{ENVIRONMENT}/bin/python, -m, vllm_supervisor.simulator, serve]
    model: demo/model
    port: 8000
    log_file: ${{VLLM_LOG_FILE}}
    model_aliases: {{short: demo/model}}
    restart: {{min_backoff: 0.2, max_backoff: 0.5}}
    stop: {{drain_timeout: 2, grace: 10}}
"""


class Container:
    """One booted systemd."""

    def __init__(self, boot: str, name: str) -> None:
        self._boot = boot
        self._name = name

    def start(self) -> None:
        subprocess.run([self._boot, "start", self._name], check=True, timeout=60)

    def stop(self) -> None:
        subprocess.run([self._boot, "stop", self._name], check=True, timeout=60)

    def run(self, command: str, *, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell command inside."""
        done = subprocess.run(
            [self._boot, "run", self._name, "sh", "-c", command],
            input=stdin, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            pytest.fail(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.journal()}")
        return done

    def write(self, path: str, text: str) -> None:
        self.run(f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)

    def journal(self) -> str:
        return self.run("journalctl -u vllm-supervisor -n 60 --no-pager -o short-monotonic", check=False).stdout

    def show(self, name: str) -> str:
        return self.run(f"systemctl show -P {name} vllm-supervisor").stdout.strip()

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run("vllm-supervisor status --json").stdout)
        return answer

    def processes(self) -> list[tuple[int, str]]:
        """Return (pid, command) of the service's control group, empty when it is gone."""
        pids = self.run("cat /sys/fs/cgroup/system.slice/vllm-supervisor.service/cgroup.procs", check=False)
        found = []
        for pid in pids.stdout.split():
            name = self.run(f"cat /proc/{pid}/comm", check=False).stdout.strip()
            if name:
                found.append((int(pid), name))
        return found

    def engines(self) -> list[int]:
        """Return the pids of all simulated engine cores in the container, in the service or out of it."""
        listed = self.run("ps -eo pid=,comm=").stdout.splitlines()
        return [int(line.split()[0]) for line in listed if "VLLM::EngineCor" in line]


@pytest.fixture(scope="session")
def container() -> Iterator[Container]:
    """Boot once; every test finds the unit installed and stopped."""
    boot = os.environ.get("REAL_SYSTEMD", "")
    if not boot:
        pytest.skip("REAL_SYSTEMD does not name a boot.sh")
    if os.geteuid() != 0:
        pytest.skip("a container needs root")
    box = Container(boot, f"vllm-supervisor-{uuid4().hex[:8]}")
    try:
        box.start()
        entry = f'#!/bin/sh\nexec {shlex.quote(str(ENVIRONMENT / "bin/vllm-supervisor"))} "$@"\n'
        box.write("/usr/bin/vllm-supervisor", entry)
        unit = (REPO / "systemd/vllm-supervisor.service").read_text()
        box.write("/etc/systemd/system/vllm-supervisor.service", unit)
        box.run("chmod 755 /usr/bin/vllm-supervisor && systemctl daemon-reload")
        yield box
    finally:
        box.stop()


@pytest.fixture
def service(container: Container) -> Iterator[Container]:
    """A fresh configuration, the unit stopped before and after."""
    container.write("/etc/vllm-supervisor/config.yaml", CONFIG)
    container.run("systemctl reset-failed vllm-supervisor", check=False)
    yield container
    container.run("systemctl stop vllm-supervisor", check=False)
    container.run("systemctl reset-failed vllm-supervisor", check=False)


@pytest.fixture
def ready(service: Container) -> Container:
    """A started service whose engine is ready."""
    service.run("systemctl start vllm-supervisor")
    service.run("vllm-supervisor wait --timeout 30")
    return service


@pytest.fixture
def within() -> Callable[..., object]:
    """Poll, as everywhere."""
    return eventually
