"""A start as an operator follows it: phases, progress, what is left, and the end of one that does not move."""

import json
import os
import pty
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import Kit
from tests.rig import COMMAND, Rig, Status

Make = Callable[..., Rig]
ORDER = [
    "launching",
    "configuring",
    "downloading",
    "loading_weights",
    "compiling",
    "capturing_graphs",
    "warming_up",
]
COUNTED = {
    "downloading": " of 20.0 MB, ",
    "loading_weights": " of 4 shards",
    "capturing_graphs": " of 10 graphs",
}


def phases(rig: Rig, generation: int) -> list[str]:
    """Return the phases that the recorder has of a start."""
    return [event["phase"] for event in rig.events("start_phase") if event["generation"] == generation]


def follow(rig: Rig, within: float = 60, *, after: int = 0) -> list[Status]:
    """Return the different statuses of a start, until it is ready."""
    seen: list[Status] = []

    def ready() -> bool:
        status = rig.status()
        if status["generation"] > after and (not seen or seen[-1]["phase"] != status["phase"]):
            seen.append(status)
        return bool(status["state"] == "ready" and status["generation"] > after)

    rig.until(ready, within, every=0.05, what="ready")
    return [status for status in seen if status["state"] == "starting"]


def finished(rig: Rig, generation: int) -> dict[str, float]:
    """Return how long each phase of a start took, seconds."""

    def found() -> dict[str, float] | None:
        events = [event for event in rig.events("start_finished") if event["generation"] == generation]
        phases: dict[str, float] | None = events[0]["phases"] if events else None
        return phases

    took: dict[str, float] = rig.until(found, what=f"end of start {generation}")
    return took


def printed(rig: Rig) -> dict[str, Any]:
    """Return the figures that the engine printed, once the last of them is known."""

    def known() -> dict[str, Any] | None:
        figures: dict[str, Any] = rig.status()["engine"]["startup"]
        return figures if figures["init_s"] is not None else None

    figures: dict[str, Any] = rig.until(known, what="figures of the start")
    return figures


def test_phases_progress_and_a_forecast(pliable: Make) -> None:
    """Every phase in order, with what is counted in it; the second start says what is left of it."""
    rig = pliable()
    knobs = {
        "import_seconds": 0.8,
        "download_bytes": 20_000_000,
        "download_seconds": 4,
        "load_seconds": 2,
        "compile_seconds": 0.8,
        "graph_seconds": 2,
        "HF_HOME": rig.folder / "hf",
    }
    rig.simulate(**knobs)
    rig.start()
    seen = follow(rig)
    assert phases(rig, 1) == ORDER
    names = [status["phase"]["name"] for status in seen]
    assert names == sorted(names, key=ORDER.index), "never back"
    for phase, words in COUNTED.items():
        counted = [s["phase"] for s in seen if s["phase"]["name"] == phase and s["phase"]["progress"] is not None]
        assert counted, phase
        assert all(words in shown["detail"] for shown in counted)
        assert all(0 <= shown["progress"] <= 1 for shown in counted)
    assert all(status["phase"]["eta_s"] is None for status in seen), "nothing is known of how long it takes"
    assert rig.metric("vllm_supervisor_startup_progress_ratio") == 1
    assert rig.metric('vllm_supervisor_phase_duration_seconds{phase="loading_weights"}') > 0.5

    assert printed(rig)["weights_gib"] == 2.35
    assert rig.status()["engine"]["vllm_version"] == "0.32.0"

    rig.post("restart")
    again = follow(rig, after=1)
    known = [status["phase"]["eta_s"] for status in again if status["phase"]["eta_s"] is not None]
    assert known
    assert 2 < known[0] < 30
    assert min(known) < known[0]
    assert "downloading" not in phases(rig, 2), "the weights are there"
    rig.post("stop")
    rig.wait_state("stopped")
    assert rig.metric("vllm_supervisor_startup_progress_ratio") == 0


def test_a_start_that_does_not_move_is_replaced(pliable: Make) -> None:
    """Silence for the stall timeout: evidence, reason `startup_stall`, and another start, which serves."""
    rig = pliable({"startup": {"stall_timeout": 2}})
    rig.simulate(load_seconds=0.4, never_ready=1, fault_starts=1, state_dir=rig.folder / "sim")
    rig.start()
    status = rig.wait_state("ready", after=1)
    assert status["restarts"]["by_reason"]["startup_stall"] == 1
    assert status["last_exit"]["reason"] == "startup_stall"
    (stalled,) = rig.events("start_stalled")
    assert stalled["phase"] == "loading_weights"
    assert "nothing moved for 2 s" in stalled["detail"]
    assert rig.metric('vllm_supervisor_restarts_total{reason="startup_stall"}') == 1
    assert len(json.loads((rig.state_dir / "history.json").read_text())["starts"]) == 1


def test_a_flood_of_log_is_no_burden(pliable: Make) -> None:
    """20 MB of log a second while it starts: phases are seen, and the socket answers."""
    rig = pliable()
    rig.simulate(load_seconds=3, log_flood=20)
    rig.start()
    assert rig.wait_state("ready")["generation"] == 1
    passed = phases(rig, 1)
    assert passed == sorted(passed, key=ORDER.index)
    assert passed[-1] == "warming_up"


def test_never_stalled_while_lines_are_new(pliable: Make) -> None:
    """A start that is longer than the stall timeout, and moves within it, is left alone."""
    rig = pliable({"startup": {"stall_timeout": 2}})
    rig.simulate(load_seconds=8, shards=16)
    rig.start()
    assert rig.wait_state("ready")["generation"] == 1


def test_history_that_is_damaged_is_forgotten(pliable: Make) -> None:
    """A file full of nonsense costs the forecast and nothing else."""
    rig = pliable()
    rig.state_dir.mkdir(parents=True)
    (rig.state_dir / "history.json").write_bytes(b"\0\xff{")
    rig.start()
    rig.wait_state("ready")
    rig.until(lambda: rig.events("start_finished"))
    assert json.loads((rig.state_dir / "history.json").read_text())["starts"]


def wait_on_a_terminal(rig: Rig) -> tuple[str, str]:
    """Run `wait` with stderr on a terminal; return (what the terminal got, standard output)."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [str(COMMAND), "wait", "--socket", str(rig.socket)], stdout=subprocess.PIPE, stderr=theirs
        ) as process:
            os.close(theirs)
            shown = bytearray()
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # nobody holds the other end any more
                    break
                if not part:
                    break
                shown += part
            out = process.communicate(timeout=60)[0].decode()
            assert process.returncode == 0
    finally:
        os.close(ours)
    return shown.decode(), out


def test_wait_shows_a_line_on_a_terminal(pliable: Make) -> None:
    """Redrawn in place and gone afterwards; what a script reads is unchanged, and a pipe gets no such line."""
    rig = pliable()
    rig.simulate(load_seconds=2)
    rig.start()
    shown, out = wait_on_a_terminal(rig)
    assert "starting, loading_weights, " in shown
    assert "of 4 shards" in shown
    assert "\n" not in shown
    assert shown.endswith("\r\033[K")
    assert out.startswith("ready after ")
    rig.post("restart")
    piped = rig.cli("wait")
    assert (piped.returncode, piped.stderr) == (0, "")


def test_status_shows_phase_and_progress(pliable: Make) -> None:
    """In words, for an operator who looks once."""
    rig = pliable()
    rig.simulate(load_seconds=20)
    rig.start()
    rig.until(lambda: rig.status()["phase"]["progress"] is not None)
    assert "phase      loading_weights, " in rig.cli("status").stdout


@pytest.fixture
def any_rig(make_rig: Make, kit: Kit) -> Rig:
    section: dict[str, Any] = {"stop": {"drain_timeout": 2, "grace": 30}, **kit.section}
    if kit.name == "simulator":
        section["env"] = section["env"] | {"SIM_IMPORT_SECONDS": "1", "SIM_LOAD_SECONDS": "2"}
    return make_rig(section)


def test_a_cold_start_and_a_second_one(any_rig: Rig, kit: Kit) -> None:
    """On each engine: phases in order, figures that it printed, and on the second start a forecast that comes true."""
    rig = any_rig
    rig.start()
    first = follow(rig, kit.ready_within)
    passed = phases(rig, 1)
    assert passed == sorted(passed, key=ORDER.index)
    assert {"launching", "configuring", "loading_weights", "warming_up"} <= set(passed), passed
    took = finished(rig, 1)
    assert set(took) == set(passed)
    assert first[0]["phase"]["name"] == "launching"
    figures = printed(rig)
    assert figures["load_s"] is not None
    assert rig.status()["engine"]["kv_cache_tokens"] > 0
    rig.post("restart")
    again = follow(rig, kit.ready_within, after=1)
    forecasts = [status["phase"]["eta_s"] for status in again if status["phase"]["eta_s"] is not None]
    first_total, second_total = sum(took.values()), sum(finished(rig, 2).values())
    print(f"{kit.name}: {took}; forecast {forecasts[0]} s, took {second_total:.1f} s")
    assert 0.3 * first_total < forecasts[0] <= first_total
