"""What systemd sees of a daemon, on a notification socket of the test's own."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig import Rig

Make = Callable[..., Rig]


class Listener:
    """Takes notifications as systemd would: at once, since the kernel keeps ten and refuses what comes then."""

    def __init__(self, path: Path) -> None:
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        self._path = str(path)
        self._heard: list[str] = []
        self._waiting: list[threading.Event] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._path)
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def close(self) -> None:
        self._send(b"the end")
        self._thread.join()
        self._socket.close()

    def listen(self) -> list[str]:
        """Return all that was sent before, an assignment each."""
        reached = threading.Event()
        self._waiting.append(reached)
        self._send(b"so far")
        assert reached.wait(20)
        return list(self._heard)

    def count(self, assignment: str) -> int:
        return self.listen().count(assignment)

    def _send(self, word: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as us:
            us.sendto(word, self._path)

    def _take(self) -> None:
        while (datagram := self._socket.recv(65536)) != b"the end":
            if datagram == b"so far":
                self._waiting.pop(0).set()
            else:
                self._heard += datagram.decode().split("\n")


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path / "notify")
    yield listener
    listener.close()


def test_ready_status_watchdog_and_stopping(make_rig: Make, systemd: Listener) -> None:
    """READY with the control socket, STATUS with each state, WATCHDOG while loop and socket answer, STOPPING once."""
    rig = make_rig()
    rig.start(environ=systemd.environ)
    rig.until(lambda: systemd.count("READY=1") == 1, what="READY")
    rig.wait_state("ready")
    rig.until(lambda: [line for line in systemd.listen() if line.startswith("STATUS=ready")], what="STATUS=ready")
    seen = systemd.count("WATCHDOG=1")
    rig.until(lambda: systemd.count("WATCHDOG=1") >= seen + 3, what="three more WATCHDOG")
    environ = Path(f"/proc/{rig.leader()}/environ").read_text()
    assert "NOTIFY_SOCKET" not in environ
    assert "WATCHDOG_USEC" not in environ
    assert rig.stop() == 0
    heard = systemd.listen()
    assert heard.count("STOPPING=1") == heard.count("READY=1") == 1
    # The drain may take 2 s, and a margin.
    asked = [int(line.partition("=")[2]) for line in heard if line.startswith("EXTEND_TIMEOUT_USEC")]
    assert any(61e6 < microseconds <= 62e6 for microseconds in asked)


def test_no_watchdog_from_a_daemon_whose_socket_is_gone(make_rig: Make, systemd: Listener) -> None:
    """Living is answering: without its control socket the daemon does not claim to live."""
    rig = make_rig()
    rig.start(environ=systemd.environ)
    rig.until(lambda: systemd.count("WATCHDOG=1") >= 1, what="WATCHDOG")
    rig.socket.rename(rig.socket.with_suffix(".away"))
    rig.socket.mkdir()  # so that it cannot be made again
    # A beat that was under way may still come; after two more rounds of silence none does.
    heard = [systemd.count("WATCHDOG=1")]

    def silent() -> bool:
        heard.append(systemd.count("WATCHDOG=1"))
        return len(heard) > 100 and heard[-1] == heard[-100]

    rig.until(silent, what="no more WATCHDOG")
    rig.socket.rmdir()
    rig.socket.with_suffix(".away").rename(rig.socket)
    before = systemd.count("WATCHDOG=1")
    rig.until(lambda: systemd.count("WATCHDOG=1") > before, what="WATCHDOG again")


def test_the_kernel_takes_the_engine_before_the_daemon(make_rig: Make) -> None:
    """The whole engine has a worse OOM score than the daemon."""
    rig = make_rig()
    rig.start()
    rig.wait_state("ready")
    own = int(Path(f"/proc/{rig.pid}/oom_score_adj").read_text())
    scores = {int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) for process in rig.members()}
    assert scores == {min(1000, own + 500)}


def test_ready_when_the_engine_is(make_rig: Make, systemd: Listener) -> None:
    """`systemd.ready_when: engine`: READY comes with the engine, and until then more time is asked for."""
    rig = make_rig({"env": {"SIM_LOAD_SECONDS": "1"}}, systemd={"ready_when": "engine"})
    rig.start(environ=systemd.environ)
    rig.until(lambda: systemd.count("READY=1") == 1, what="READY")
    heard = systemd.listen()
    assert heard.index("EXTEND_TIMEOUT_USEC=60000000") < heard.index("READY=1")
    assert rig.status()["ready"]
    generation = rig.status()["generation"]
    rig.post("restart")
    rig.wait_state("ready", after=generation)
    assert systemd.count("READY=1") == 1
