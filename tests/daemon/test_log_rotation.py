"""vLLM's log under rotation, in a whole daemon."""

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.rig import Rig

Make = Callable[..., Rig]


def rotating(make_rig: Make, *, flood: str = "0", max_bytes: str = "300 kB") -> Rig:
    rig = make_rig({"env": {"SIM_LOG_FLOOD": flood}, "log": {"max_bytes": max_bytes, "keep": 3}})
    rig.start()
    rig.wait_state("ready")
    return rig


def test_a_log_that_grows_is_rotated_and_the_engine_goes_on(make_rig: Make) -> None:
    """Older files appear and no more than asked for; the engine stays the same, ready, and unaware."""
    rig = rotating(make_rig, flood="2")
    before = rig.status()
    rig.until(lambda: len(rig.events("log_rotated")) >= 5, what="five rotations")
    after = rig.status()
    assert (after["generation"], after["state"]) == (before["generation"], "ready")
    assert rig.cli("logs", "-n", "1").stdout.strip()
    assert rig.stop() == 0
    # Not before: amid a rotation a name is missing.
    assert sorted(path.name for path in rig.folder.glob("vllm.log*")) == [
        "vllm.log", "vllm.log.1", "vllm.log.2", "vllm.log.3",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in rig.folder.glob("vllm.log*")} == {0o640}


def test_at_a_relaunch_the_file_is_renamed_and_each_generation_is_marked(make_rig: Make) -> None:
    """A log beyond its limit begins anew with the next generation, whose part begins with a line from us."""
    rig = make_rig({"log": {"max_bytes": "10 kB", "keep": 2}})
    rig.log.write_text("an earlier life\n" * 1000)
    rig.start()
    rig.wait_state("ready")
    assert rig.log.with_name("vllm.log.1").read_text() == "an earlier life\n" * 1000
    assert rig.log.read_text().startswith("[vllm-supervisor] generation 1 is launched at ")


def test_a_deleted_log_is_told_and_the_next_engine_has_one(make_rig: Make) -> None:
    """Without its file the engine lives on; the restart makes a new one."""
    rig = rotating(make_rig)
    generation = rig.status()["generation"]
    rig.log.unlink()
    rig.until(lambda: rig.events("log_file_missing"), what="log_file_missing")
    assert rig.status()["ready"]
    rig.post("restart")
    rig.wait_state("ready", after=generation)
    assert f"generation {generation + 1} is launched" in rig.log.read_text()
    assert len(rig.events("log_file_missing")) == 1
    assert rig.metric('vllm_supervisor_log_problems_total{problem="missing"}') == 1


def test_a_rotation_that_fails_is_told_once(make_rig: Make) -> None:
    """Something in the way of the copy: an event, not one a second, and the engine is left alone."""
    rig = make_rig({"env": {"SIM_LOG_FLOOD": "1"}, "log": {"max_bytes": "300 kB", "keep": 3}})
    rig.log.with_name("vllm.log.new").mkdir()
    rig.start()
    rig.wait_state("ready")
    rig.until(lambda: rig.events("log_rotation_failed"), what="log_rotation_failed")
    rig.until(lambda: rig.log.stat().st_size > 2_000_000, what="a log far beyond its limit")
    assert len(rig.events("log_rotation_failed")) == 1
    assert rig.status()["ready"]
    rig.log.with_name("vllm.log.new").rmdir()
    rig.until(lambda: rig.events("log_rotated"), what="log_rotated")


def test_a_full_disk_is_told_and_hurts_nobody(make_rig: Make) -> None:
    """Where the log's disk is full, an event and a metric say so, once; engine and daemon go on."""
    own_mounts = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256k none "$LOGS" && exec "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*own_mounts[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("a small disk of its own needs root, and leave to mount")
    rig = make_rig({"env": {"SIM_LOG_FLOOD": "1"}})
    logs = rig.folder / "logs"
    logs.mkdir()
    rig.config["engine"]["vllm"]["log_file"] = str(logs / "vllm.log")
    rig.start(prefix=own_mounts, environ={"LOGS": str(logs)})
    before = rig.wait_state("ready")
    full = 'vllm_supervisor_log_problems_total{problem="disk_full"}'
    rig.until(lambda: rig.metric(full), what="the metric")
    [event] = rig.events("log_disk_full")
    assert "no room is left" in event["detail"]
    rig.post("restart")
    status = rig.wait_state("ready", after=before["generation"])
    assert status["restarts"]["by_reason"]["crash"] == 0
    assert len(rig.events("log_disk_full")) == 1
    assert rig.stop() == 0


def test_a_log_folder_that_nobody_may_write_to(make_rig: Make) -> None:
    """A rotation that is refused is an event and a metric; the engine goes on, and so does its log."""
    rig = make_rig({"env": {"SIM_LOG_FLOOD": "1"}, "log": {"max_bytes": "300 kB", "keep": 3}})
    logs = rig.folder / "logs"
    logs.mkdir()
    rig.config["engine"]["vllm"]["log_file"] = str(logs / "vllm.log")
    prefix: list[str] = []
    if os.geteuid() == 0:
        # To root no folder is closed, but to whoever has no capability.
        prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    rig.start(prefix=prefix)
    rig.wait_state("ready")
    logs.chmod(0o500)
    try:
        refused = 'vllm_supervisor_log_problems_total{problem="not_writable"}'
        rig.until(lambda: rig.metric(refused), what="the metric")
        assert len(rig.events("log_rotation_failed")) == 1
        grown = (logs / "vllm.log").stat().st_size
        rig.until(lambda: (logs / "vllm.log").stat().st_size > grown, what="the log goes on")
        assert rig.status()["ready"]
    finally:
        logs.chmod(0o700)
    rig.until(lambda: rig.events("log_rotated"), what="log_rotated")
