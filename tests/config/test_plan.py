"""What a daemon is handed: a configuration read by a process of its own."""

import json
import os
from pathlib import Path

import pytest

from vllm_supervisor.config.changes import Changes, compare
from vllm_supervisor.config.plan import Plan, decode, encode
from vllm_supervisor.config.reading import Reading
from vllm_supervisor.errors import ConfigError


def read(folder: Path, engine: dict[str, object], *sets: str, **top: object) -> Plan:
    section = {"model": "m", "launcher": ["vllm", "serve"], "log_file": str(folder / "v.log")} | engine
    path = folder / "c.yaml"
    path.write_text(json.dumps({"engine": {"vllm": section}, "state_dir": str(folder)} | top))
    environ = {**os.environ, "RUNTIME_DIRECTORY": str(folder)}
    return Reading(path, sets, environ).result()


def test_a_plan_arrives_whole(tmp_path: Path) -> None:
    """Policy, command, address, key and places come through the pipe as they were read."""
    plan = read(tmp_path, {"api_key": "hush-hush", "port": 8123}, "engine.vllm.stop.grace=7", metrics={"port": 9999})
    assert plan.policy.stop_grace == 7
    assert plan.launch.argv[:3] == ("vllm", "serve", "m")
    assert plan.engine.base_url == "http://127.0.0.1:8123"
    assert plan.engine.api_key is not None
    assert plan.engine.api_key.reveal() == "hush-hush"
    assert plan.metrics.port == 9999
    assert plan.control.path == str(tmp_path / "control.sock")
    assert decode(json.loads(json.dumps(encode(plan)))) == plan
    assert "hush-hush" not in repr(plan)
    assert "hush-hush" not in json.dumps(dict(plan.values))


def test_problems_arrive_all_together(tmp_path: Path) -> None:
    """What is wrong is told as by `check`: each with its place, key, reason and remedy."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, {"port": 0, "modle": "x"})
    assert {problem.key for problem in caught.value.problems} == {"engine.vllm.port", "engine.vllm.modle"}
    assert all(problem.remedy for problem in caught.value.problems)


def test_two_plans_differ_by_keys_and_no_value_is_told(tmp_path: Path) -> None:
    """Changes are named by key, also for secrets and for entries of mappings."""
    old = read(tmp_path, {"env": {"A": "1", "HF_TOKEN": "aaaa"}, "concurrency": 3})
    new = read(tmp_path, {"env": {"B": "1", "HF_TOKEN": "bbbb"}, "concurrency": 4}, metrics={"port": 9999})
    assert compare(old.values, new.values) == Changes(
        live=("engine.vllm.concurrency",),
        engine=("engine.vllm.env.A", "engine.vllm.env.B", "engine.vllm.env.HF_TOKEN"),
        daemon=("metrics.port",),
    )
