"""`make install` and `make uninstall`, as an administrator meets them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.conftest import CONFIG, REPO, TREE, WHEELS, Container, booted

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(300)]

SOURCE = " ".join(
    f"{TREE}/{name}"
    for name in (
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "requirements.txt",
        "etc",
        "systemd",
        "vllm_supervisor",
    )
)
WRITTEN = "/var/lib/vllm-supervisor /var/log/vllm-supervisor /etc/vllm-supervisor"


def files_of_ours(box: Container) -> set[str]:
    """Return every file and directory whose path names us, outside the source and the caches of this machine."""
    found = box.run(
        f"find / /run -xdev \\( -path /root -o -path {REPO} -o -path /usr/src -o -path /var/cache/man "
        "-o -path /run/systemd -o -path /run/systemd-test -o -path /run/host \\) -prune "
        "-o -name '*vllm-supervisor*' -print"
    )
    return set(found.stdout.split())


@pytest.fixture
def bare(wheels: Path) -> Iterator[Container]:
    """A container of its own, in which nothing is installed."""
    with booted(wheels) as box:
        yield box


def test_install_twice_serve_uninstall_twice_purge(bare: Container) -> None:
    """From nothing to a service that is ready, as the README says, and back to nothing."""
    before = files_of_ours(bare)
    told = bare.install()
    assert "systemctl enable --now vllm-supervisor" in told
    assert bare.run("stat -c '%U:%G %a' /etc/vllm-supervisor/config.yaml").stdout == "root:vllm-supervisor 640\n"
    assert bare.run("stat -c '%U:%G %a' /var/lib/vllm-supervisor").stdout == "vllm-supervisor:vllm-supervisor 750\n"
    for page in ("8 vllm-supervisor", "5 vllm-supervisor.yaml"):
        assert "EXAMPLES" in bare.run(f"man {page}").stdout

    # A copy for an instance is readable for the service, and for nobody else.
    bare.run("cp /etc/vllm-supervisor/config.yaml /etc/vllm-supervisor/small.yaml")
    assert bare.run("stat -c '%U:%G %a' /etc/vllm-supervisor/small.yaml").stdout == "root:vllm-supervisor 640\n"

    # Repeated, over a configuration of the administrator's own; builds that nobody uses go, the previous one stays.
    bare.write("/etc/vllm-supervisor/config.yaml", CONFIG)
    (first,) = bare.environments()
    bare.run("mkdir /usr/lib/vllm-supervisor/venv-0.0.1-interrupted")
    assert "kept /etc/vllm-supervisor/config.yaml" in bare.install()
    assert bare.run("cat /etc/vllm-supervisor/config.yaml").stdout == CONFIG
    assert len(bare.environments()) == 2
    assert first in bare.environments()

    bare.run("systemctl enable --now vllm-supervisor")
    bare.wait_ready()
    assert bare.run("ps -o user= -p $(systemctl show -P MainPID vllm-supervisor)").stdout.startswith("vllm-sup")

    bare.run(f"make -s -C {TREE} uninstall")
    assert bare.engines() == []
    assert "not-found" in bare.show("LoadState")
    assert bare.run("command -v vllm-supervisor", check=False).returncode != 0
    kept = files_of_ours(bare) - before
    assert kept == {*WRITTEN.split(), "/var/cache/vllm-supervisor"}
    assert "startup complete" in bare.run("cat /var/log/vllm-supervisor/vllm.log").stdout
    bare.run(f"make -s -C {TREE} uninstall")

    bare.run(f"make -s -C {TREE} uninstall PURGE=1 && make -s -C {TREE} uninstall PURGE=1")
    assert files_of_ours(bare) - before == set()
    assert bare.run("id vllm-supervisor", check=False).returncode != 0
    assert bare.run("systemctl --failed --no-legend").stdout == ""


def test_a_build_that_fails_changes_nothing(ready: Container) -> None:
    """Without the wheels nothing is switched, nothing half-built stays, and the service runs on."""
    before = (ready.environments(), ready.run("cat /usr/bin/vllm-supervisor").stdout, ready.status()["pid"])
    done = ready.run(
        f"make -s -C {TREE} install PIP_FLAGS='-qq --disable-pip-version-check --no-index'", check=False, timeout=180
    )
    assert done.returncode != 0
    assert before == (ready.environments(), ready.run("cat /usr/bin/vllm-supervisor").stdout, ready.status()["pid"])


def test_an_interpreter_that_only_root_can_read_is_refused(container: Container) -> None:
    """A Python under root's home would work for root and fail in the service: said before anything is switched."""
    container.run("cp -L /usr/bin/python3 ~root/python3 && chmod 700 ~root ~root/python3")
    before = container.run("cat /usr/bin/vllm-supervisor").stdout
    try:
        done = container.run(
            f"make -s -C {TREE} install PYTHON=$(echo ~root)/python3 "
            f"PIP_FLAGS='-qq --disable-pip-version-check --no-index --find-links {WHEELS}'",
            check=False,
            timeout=180,
        )
    finally:
        container.run("rm ~root/python3")
    assert done.returncode != 0
    assert "give PYTHON= one that all can" in done.stderr
    assert container.run("cat /usr/bin/vllm-supervisor").stdout == before


def test_an_upgrade_under_a_running_service(ready: Container) -> None:
    """Upgrades go by under a running daemon, which keeps its files and its engine until it is restarted."""
    before = ready.status()
    home = "/usr/lib/vllm-supervisor"
    (running,) = ready.environments()
    # An upgrade in between, as it leaves things: the daemon's environment is in use and no longer the previous one.
    ready.run(
        f"cp -a {home}/{running} {home}/venv-98.0.0-x && mkdir {home}/venv-97.0.0-x && "
        f"sed -i 's#{running}#venv-98.0.0-x#' /usr/bin/vllm-supervisor"
    )
    ready.run(f"rm -rf /tmp/source && mkdir /tmp/source && cp -r {SOURCE} /tmp/source")
    ready.run("sed -i 's/^__version__ = .*/__version__ = \"99.0.0\"/' /tmp/source/vllm_supervisor/__init__.py")
    assert "vllm-supervisor.service still runs the version it was started with" in ready.install("/tmp/source")
    assert {name.rsplit("-", 2)[0] for name in ready.environments() - {running, "venv-98.0.0-x"}} == {"venv-99.0.0"}
    assert {running, "venv-98.0.0-x"} < ready.environments()
    assert ready.run("vllm-supervisor --version").stdout == "vllm-supervisor 99.0.0\n"

    now = ready.status()
    assert (now["version"], now["pid"]) == (before["version"], before["pid"])
    # The old daemon still has all that a restart of its engine needs.
    ready.run("vllm-supervisor restart")
    assert ready.status()["version"] == before["version"]
    ready.run("systemctl restart vllm-supervisor")
    ready.wait_ready()
    assert ready.status()["version"] == "99.0.0"
