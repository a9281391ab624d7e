import pytest

from vllm_supervisor.config.changes import Changes, Reach, compare, reach


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("engine.vllm.port", Reach.ENGINE),
        ("engine.vllm.env.HF_TOKEN", Reach.ENGINE),
        ("engine.vllm.environment", Reach.LIVE),
        ("engine.vllm.log_file", Reach.ENGINE),
        ("engine.vllm.log.max_bytes", Reach.LIVE),
        ("engine.vllm.model", Reach.ENGINE),
        ("engine.vllm.model_aliases.short", Reach.LIVE),
        ("engine.vllm.probe.interval", Reach.LIVE),
        ("engine.vllm.concurrency", Reach.LIVE),
        ("resources.max_concurrent_jobs", Reach.LIVE),
        ("control.admins", Reach.LIVE),
        ("control.mode", Reach.DAEMON),
        ("metrics.port", Reach.DAEMON),
        ("state_dir", Reach.DAEMON),
        ("logging.level", Reach.LIVE),
    ],
)
def test_each_key_reaches_as_far_as_it_must(key: str, expected: Reach) -> None:
    """What is bound at the start needs a new daemon, what is in the command a new engine, the rest nothing."""
    assert reach(key) is expected


def test_changes_are_found_both_ways() -> None:
    """A key that came, one that went and one that differs are changes; equal ones are none."""
    old = {"engine.vllm.port": "a", "logging.level": "x", "metrics.port": "1", "engine.vllm.env.GONE": "g"}
    new = {"engine.vllm.port": "b", "logging.level": "x", "metrics.port": "2", "engine.vllm.env.NEW": "n"}
    assert compare(old, new) == Changes(
        engine=("engine.vllm.env.GONE", "engine.vllm.env.NEW", "engine.vllm.port"), daemon=("metrics.port",)
    )
    assert not compare(old, old)
