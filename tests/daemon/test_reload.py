"""Reloads of a whole daemon: what takes effect at once, what waits for another engine or daemon, what is refused."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.daemon.test_systemd_side import Listener
from tests.ports import free_port
from tests.rig import COMMAND, Rig

Make = Callable[..., Rig]


def vllm(rig: Rig) -> dict[str, Any]:
    section: dict[str, Any] = rig.config["engine"]["vllm"]
    return section


def reload(rig: Rig, *options: str) -> str:
    """Write the configuration anew, have it reloaded, and return what is said."""
    rig.configure()
    done = rig.cli("reload", *options)
    assert done.returncode == 0, done
    assert [line for line in done.stderr.splitlines() if not line.startswith("vllm-supervisor: warning: ")] == []
    return done.stdout


def test_what_can_change_takes_effect_at_once(pliable: Make) -> None:
    """Another concurrency, alias, probe and level hold while the same engine goes on; nothing waits."""
    rig = pliable({"probe": {"interval": 60}}, logging={"level": "error"})
    rig.start()
    before = rig.wait_state("ready")
    vllm(rig).update(
        {
            "concurrency": 77,
            "model_aliases": {"short": "demo/model", "gone": "no/model"},
            "probe": {"interval": 0.05, "timeout": 5, "failure_threshold": 1, "restart_after": 0.05},
        }
    )
    rig.config["logging"] = {"level": "info"}
    rig.config["control"] |= {"admins": [12345], "mode": "0600"}
    said = reload(rig)
    at_once, daemon = said.splitlines()
    assert at_once.startswith("took effect: ")
    assert {"control.admins", "engine.vllm.concurrency", "logging.level"} <= set(at_once.replace(",", " ").split())
    assert daemon.startswith("need a new daemon")
    assert daemon.endswith(": control.mode")
    after = rig.status()
    assert (after["pid"], after["generation"], after["concurrency"]) == (before["pid"], before["generation"], 77)
    assert {"name": "short", "served": "demo/model"} in rig.get("/v1/models")["models"]
    assert [event["alias"] for event in rig.events("alias_target_missing")] == ["gone"]
    assert after["config"]["path"] == str(rig.folder / "config.yaml")
    assert (after["config"]["pending"], after["config"]["pending_daemon"]) == ([], ["control.mode"])
    assert after["config"]["loaded_at"] > before["config"]["loaded_at"]
    rig.until(lambda: "config_reloaded" in rig.daemon_log(), what="the level of the log")
    # At the old pace it would take minutes.
    ok = 'vllm_supervisor_probe_results_total{probe="health",result="ok"}'
    seen = rig.metric(ok)
    rig.until(lambda: rig.metric(ok) >= seen + 3, what="probes at the new pace")


def test_an_engine_key_waits_for_an_operator_and_outlives_a_crash(pliable: Make) -> None:
    """Named and pending; a crash brings the old engine back; `restart` and `reload --restart-engine` bring the new."""
    rig = pliable()
    rig.start()
    before = rig.wait_state("ready")
    old, rig.port = rig.port, free_port()
    first_log, rig.log = rig.log, rig.folder / "other" / "vllm.log"
    vllm(rig).update({"port": rig.port, "log_file": str(rig.log), "api_key": "sk-new"})
    keys = ["engine.vllm.api_key", "engine.vllm.log_file", "engine.vllm.port"]
    assert ", ".join(keys) in reload(rig)
    status = rig.status()
    assert (status["pid"], status["config"]["pending"]) == (before["pid"], keys)
    assert status["base_url"].endswith(f":{old}")
    os.kill(rig.leader(), signal.SIGKILL)
    status = rig.wait_state("ready", after=1)
    assert (status["base_url"], status["config"]["pending"]) == (before["base_url"], keys)
    assert "waits for a new engine: engine.vllm.api_key" in rig.cli("status").stdout
    assert rig.cli("logs").stdout
    said = reload(rig, "--restart-engine")
    assert "ready after" in said
    status = rig.status()
    assert status["base_url"].endswith(f":{rig.port}")
    assert status["config"]["pending"] == []
    assert (status["restarts"]["by_reason"]["config"], status["restarts"]["consecutive"]) == (1, 0)
    assert (rig.ask_engine("/v1/models")[0], rig.ask_engine("/v1/models", key="sk-new")[0]) == (401, 200)
    # What reads the log reads the new one, and the old one is let go.
    assert "Application startup complete" in rig.log.read_text()
    assert rig.cli("logs", "-n", "3").stdout in rig.log.read_text()
    assert rig.log.read_text() not in first_log.read_text()
    # A changed engine that fails is told with 5.
    vllm(rig).update({"env": {"SIM_EXIT_CODE": "1"}, "restart": {"never_ready_limit": 1}})
    rig.configure()
    done = rig.cli("reload", "--restart-engine")
    assert (done.returncode, "the engine failed" in done.stderr) == (5, True), done


def test_a_bad_file_changes_nothing_and_says_so_everywhere(make_rig: Make, tmp_path: Path) -> None:
    """On the socket, as an event, in the log, in STATUS; until the next good one. The engine is the same."""
    systemd = Listener(tmp_path / "notify")
    try:
        rig = make_rig()
        rig.start(environ=systemd.environ)
        before = rig.wait_state("ready")
        rig.until(lambda: systemd.count("READY=1") == 1, what="READY")
        good = vllm(rig)["port"]
        vllm(rig).update({"port": 80000, "concurrency": 99})
        rig.config["metrics"]["prot"] = 1
        path = rig.configure()
        done = rig.cli("reload", "--restart-engine")
        assert (done.returncode, done.stdout) == (1, "")
        first, second = sorted(done.stderr.splitlines())
        assert first.startswith(f"vllm-supervisor: {path}:1: engine.vllm.port: ")
        assert "metrics.prot" in second
        status = rig.status()
        assert (status["pid"], status["concurrency"]) == (before["pid"], before["concurrency"])
        assert len(status["config"]["refused"]) == 2
        (event,) = rig.events("config_refused")
        assert [f"vllm-supervisor: {line}" for line in sorted(event["problems"])] == [first, second]
        assert "config_refused" in rig.daemon_log()
        heard = rig.until(lambda: [line for line in systemd.listen() if "reload refused: " in line], what="STATUS")
        assert heard[-1].startswith("STATUS=ready")
        # SIGHUP says the same to all but the socket; and is told as a reload to systemd, which ends.
        rig.send(signal.SIGHUP)
        rig.until(lambda: len(rig.events("config_refused")) == 2, what="another refusal")
        rig.until(lambda: systemd.count("READY=1") == systemd.count("RELOADING=1") + 1 == 3, what="its end")
        vllm(rig)["port"] = good
        del rig.config["metrics"]["prot"]
        rig.configure()
        rig.send(signal.SIGHUP)
        rig.until(lambda: rig.status()["concurrency"] == 99, what="the good file")
        assert rig.status()["config"]["refused"] == []

        def shown() -> str:
            return [line for line in systemd.listen() if line.startswith("STATUS=")][-1]

        rig.until(lambda: shown().startswith("STATUS=ready, generation 1") and "refused" not in shown(), what="STATUS")
        assert any(line.startswith("MONOTONIC_USEC=") for line in systemd.listen())
    finally:
        systemd.close()


def test_a_dry_run_and_check_against_running_tell_the_same_and_change_nothing(make_rig: Make) -> None:
    """Each key with how far it reaches; of the daemon's file, and of another one; secrets by name only."""
    rig = make_rig({"api_key": "sk-first"})
    rig.start()
    before = rig.wait_state("ready")
    vllm(rig).update({"api_key": "sk-second", "concurrency": 9})
    rig.config["metrics"]["port"] = free_port()
    path = rig.configure()
    answer = json.loads(rig.cli("reload", "--dry-run", "--restart-engine", "--json").stdout)["reload"]
    keys = {"live": ["engine.vllm.concurrency"], "engine": ["engine.vllm.api_key"], "daemon": ["metrics.port"]}
    assert {name: answer[name] for name in keys} == keys
    assert answer["dry_run"]
    checked = rig.cli("check", str(path), "--against-running", "--json")
    assert {name: json.loads(checked.stdout)["reload"][name] for name in keys} == keys
    other = path.with_name("other.yaml")
    other.write_text(path.read_text())
    checked = rig.cli("check", str(other), "--against-running")
    assert checked.returncode == 0, checked
    for name in keys.values():
        assert name[0] in checked.stdout
    assert (
        "sk-" not in checked.stdout + json.dumps(answer) + rig.cli("events").stdout + rig.cli("status", "--json").stdout
    )
    after = rig.status()
    assert (after["pid"], after["concurrency"], after["config"]) == (
        before["pid"],
        before["concurrency"],
        before["config"],
    )
    assert rig.events("config_reloaded") == rig.events("control_request") == []


def test_a_file_is_led_to_its_own_daemon_whatever_it_says(make_rig: Make, tmp_path: Path) -> None:
    """As `ExecReload=` asks: a broken file, another socket in it, no file at all; the refusal is seen everywhere."""
    rig = make_rig()
    runtime = tmp_path / "run"
    runtime.mkdir()
    rig.start(environ={"RUNTIME_DIRECTORY": str(runtime)})
    rig.wait_state("ready")
    path = rig.configure()

    def reloaded(*options: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"RUNTIME_DIRECTORY": str(runtime)}
        words = [str(COMMAND), "reload", "-c", str(path), *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environ)

    rig.config["control"]["socket"] = str(tmp_path / "another.sock")
    rig.configure()
    done = reloaded()
    assert (done.returncode, "control.socket" in done.stdout) == (0, True), done
    path.write_text("engine: [\n")
    assert reloaded().returncode == 1
    path.unlink()
    os.mkfifo(path)
    done = reloaded("--timeout", "30")
    assert (done.returncode, "it is a FIFO" in done.stderr) == (1, True), done
    path.unlink()
    assert reloaded().returncode == 1
    assert len(rig.events("config_refused")) == 3
    assert len(rig.status()["config"]["refused"]) == 1
    rig.send(signal.SIGSTOP)
    try:
        done = reloaded()
    finally:
        rig.send(signal.SIGCONT)
    assert (done.returncode, "no daemon that runs on it answers" in done.stderr) == (2, True), done
    assert rig.stop() == 0
    assert list(runtime.iterdir()) == []
