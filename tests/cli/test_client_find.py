"""Where clients look for the daemon."""

import argparse
import socket
from pathlib import Path

import pytest

from vllm_supervisor.cli.find import VARIABLE, find_socket
from vllm_supervisor.errors import ConfigError, NoDaemonError, SupervisorError


def _args(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**({"socket": None, "instance": None, "config": None, "set": []} | given))


def _bind(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.fixture
def system(tmp_path: Path) -> str:
    """Name a place that stands for /run/vllm-supervisor."""
    return str(tmp_path / "run")


def test_a_variable_that_only_the_daemon_has_is_no_matter(tmp_path: Path) -> None:
    """A client needs the socket alone; the rest of the file may be beyond it."""
    config = tmp_path / "c.yaml"
    config.write_text("engine: {vllm: {log_file: '${ONLY_THE_UNIT_SETS_IT}'}}\ncontrol: {socket: '${PLACE}/x.sock'}\n")
    assert find_socket(_args(config=str(config)), {"PLACE": "/from"}) == "/from/x.sock"


def test_what_was_named_wins_in_this_order(system: str, tmp_path: Path) -> None:
    """The command line over the environment over the file over the usual places; named ones need not exist."""
    config = tmp_path / "c.yaml"
    config.write_text("engine: {vllm: {model: m}}\ncontrol: {socket: /from/file.sock}\n")
    environ = {VARIABLE: "/from/env.sock", "HOME": str(tmp_path)}
    named = _args(socket="/a.sock", instance="two", set=["control.socket=/set.sock"], config=str(config))
    assert find_socket(named, environ) == "/a.sock"
    named.socket = None
    assert find_socket(named, environ, system=system) == f"{system}/two/control.sock"
    named.instance = None
    assert find_socket(named, environ) == "/set.sock"
    named.set = []
    assert find_socket(named, environ) == "/from/env.sock"
    assert find_socket(named, {"HOME": str(tmp_path)}) == "/from/file.sock"


def test_broken_file_is_reported_as_such(tmp_path: Path) -> None:
    """A configuration that cannot be read is not taken for a daemon that is not there."""
    config = tmp_path / "c.yaml"
    config.write_text("- a list\n")
    with pytest.raises(ConfigError):
        find_socket(_args(config=str(config)), {})


def test_first_existing_of_the_usual_places(system: str, tmp_path: Path) -> None:
    """$RUNTIME_DIRECTORY (its first entry), the system's, the session's."""
    environ = {"RUNTIME_DIRECTORY": f"{tmp_path}/rt:{tmp_path}/other", "XDG_RUNTIME_DIR": f"{tmp_path}/xdg"}
    with pytest.raises(NoDaemonError) as caught:
        find_socket(_args(), environ, system=system)
    tried = [f"{tmp_path}/rt/control.sock", f"{system}/control.sock", f"{tmp_path}/xdg/vllm-supervisor/control.sock"]
    assert ", ".join(tried) in str(caught.value)
    for path in reversed(tried):
        _bind(Path(path))
        assert find_socket(_args(), environ, system=system) == path


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "."])
def test_instance_is_a_name(name: str) -> None:
    """A path belongs to --socket."""
    with pytest.raises(SupervisorError, match="--socket"):
        find_socket(_args(instance=name), {})


def test_a_daemon_with_its_socket_elsewhere_is_found_by_its_link(system: str, tmp_path: Path) -> None:
    """In the usual places and in an instance's, unless a socket is there itself; a link to nothing is none."""
    _bind(tmp_path / "elsewhere.sock")
    for place, args in ((Path(system), _args()), (Path(system, "two"), _args(instance="two"))):
        place.mkdir(parents=True, exist_ok=True)
        (place / "current.sock").symlink_to(tmp_path / "elsewhere.sock")
        assert find_socket(args, {}, system=system) == f"{place}/current.sock"
        _bind(place / "control.sock")
        assert find_socket(args, {}, system=system) == f"{place}/control.sock"
        (place / "control.sock").unlink()
    (tmp_path / "elsewhere.sock").unlink()
    with pytest.raises(NoDaemonError):
        find_socket(_args(), {}, system=system)
