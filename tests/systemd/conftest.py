"""Throw-away systemd containers into which `make install` installs, with the simulator as the engine."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.eventually import eventually

REPO = Path(__file__).parents[2]
TREE = "/usr/src/checkout"
WHEELS = "/usr/src/wheels"
"""Where checkout and wheels are inside. The host's own places may be hidden there: a container has its own /tmp."""
PYTHON = "/usr/bin/python3"
"""What `make install` takes: one that the service's user can read."""

CONFIG = """
engine:
  vllm:
    launcher: [vllm-supervisor, simulate, serve]
    model: demo/model
    port: 8000
    log_file: ${VLLM_LOG_FILE}
    model_aliases: {short: demo/model}
    restart: {min_backoff: 0.2, max_backoff: 0.5}
    stop: {drain_timeout: 2, grace: 10}
"""
SLOW = CONFIG.replace("log_file:", 'env: {SIM_LOAD_SECONDS: "120"}\n    log_file:')
"""A start that takes longer than any test."""


class Container:
    """One booted systemd."""

    def __init__(self, boot: str, name: str) -> None:
        self._boot = boot
        self._name = name

    def start(self) -> None:
        subprocess.run([self._boot, "start", self._name], check=True, timeout=60)

    def bring(self, source: Path, target: str) -> None:
        """Copy a folder of the host into the container, without what is built or cached in it."""
        leave = ["--exclude=./.venv*", "--exclude=./.git", "--exclude=./.*_cache", "--exclude=__pycache__"]
        inside = [self._boot, "run", self._name, "sh", "-c", f"mkdir -p {target} && tar -C {target} -xf -"]
        with subprocess.Popen(["tar", "-C", str(source), *leave, "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(inside, stdin=tar.stdout, check=True, timeout=60)

    def stop(self) -> None:
        subprocess.run([self._boot, "stop", self._name], check=True, timeout=60)

    def run(
        self, command: str, *, check: bool = True, stdin: str | None = None, timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command inside, as root with the environment of a login and no other."""
        done = subprocess.run(
            [
                self._boot, "run", self._name,
                "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                "sh", "-c", command,
            ],
            input=stdin, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            pytest.fail(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.journal()}")
        return done

    def write(self, path: str, text: str) -> None:
        self.run(f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)

    def install(self, source: str = TREE, *, arguments: str = "") -> str:
        """`make install` with the wheels that were fetched beforehand: there is no network inside."""
        flags = f"-qq --disable-pip-version-check --no-index --find-links {WHEELS}"
        done = self.run(f'make -s -C {source} install PIP_FLAGS="{flags}" {arguments}', timeout=180)
        return done.stdout + done.stderr

    def environments(self) -> set[str]:
        """Return the names of the program's own environments."""
        return set(self.run("ls /usr/lib/vllm-supervisor", check=False).stdout.split())

    def journal(self, unit: str = "vllm-supervisor") -> str:
        return self.run(f"journalctl -u {unit} -n 60 --no-pager -o short-monotonic", check=False).stdout

    def show(self, name: str, unit: str = "vllm-supervisor") -> str:
        return self.run(f"systemctl show -P {name} {unit}").stdout.strip()

    def status(self, options: str = "") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run(f"vllm-supervisor status --json {options}").stdout)
        return answer

    def wait_ready(self, options: str = "") -> None:
        self.run(f"vllm-supervisor wait --timeout 40 {options}")

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

    @contextmanager
    def drop_in(self, text: str, unit: str = "vllm-supervisor.service") -> Iterator[None]:
        """Lay `text` over the unit for a while."""
        folder = f"/etc/systemd/system/{unit}.d"
        self.write(f"{folder}/test.conf", text)
        self.run("systemctl daemon-reload")
        try:
            yield
        finally:
            self.run(f"rm -rf {folder} && systemctl daemon-reload")


@pytest.fixture(scope="session")
def wheels() -> Path:
    """A folder with all that `make install` would download, kept from run to run."""
    build = tomllib.loads((REPO / "pyproject.toml").read_text())["build-system"]["requires"]
    pins = (REPO / "requirements.txt").read_text()
    version = subprocess.run([PYTHON, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256("".join([pins, version, *build]).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-supervisor"
    folder = cache / f"wheels-{key}"
    if folder.is_dir():
        return folder
    fresh = cache / f"wheels-{key}.{os.getpid()}"
    try:
        fetch = ["make", "-s", "-C", str(REPO), "wheels", f"WHEELS={fresh}"]
        done = subprocess.run(fetch, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            pytest.fail(f"the wheels that the container needs cannot be fetched: {done.stderr[-2000:]}")
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


@contextmanager
def booted(wheels: Path) -> Iterator[Container]:
    """A container without any installation of ours."""
    boot = os.environ.get("REAL_SYSTEMD", "")
    if not boot:
        pytest.skip("REAL_SYSTEMD does not name a boot.sh")
    if os.geteuid() != 0:
        pytest.skip("a container needs root")
    box = Container(boot, f"vllm-supervisor-{uuid4().hex[:8]}")
    try:
        box.start()
        box.bring(REPO, TREE)
        box.bring(wheels, WHEELS)
        yield box
    finally:
        box.stop()


@pytest.fixture(scope="session")
def container(wheels: Path) -> Iterator[Container]:
    """Boot and install once; every test finds the units stopped."""
    with booted(wheels) as box:
        sys.stderr.write(box.install())
        yield box


@pytest.fixture
def service(container: Container) -> Iterator[Container]:
    """A fresh configuration, the unit stopped before and after."""
    container.write("/etc/vllm-supervisor/config.yaml", CONFIG)
    container.run("systemctl reset-failed 'vllm-supervisor*'", check=False)
    yield container
    container.run("systemctl stop vllm-supervisor.socket vllm-supervisor 'vllm-supervisor@*'", check=False)
    container.run("systemctl reset-failed 'vllm-supervisor*'", check=False)


@pytest.fixture
def ready(service: Container) -> Container:
    """A started service whose engine is ready."""
    service.run("systemctl start vllm-supervisor")
    service.wait_ready()
    return service


def ready_again(box: Container, generation: int, *, within: float = 60) -> dict[str, Any]:
    """Wait until an engine after `generation` is ready; return the status."""

    def again() -> dict[str, Any]:
        now = box.status()
        return now if now["ready"] is True and now["generation"] > generation else {}

    return eventually(again, within=within, every=0.1, what="the next engine is ready")
