"""The pure parts: flags, knobs, scheduling; and the cost of a start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor.simulator.args import UsageError, parse
from vllm_supervisor.simulator.download import download
from vllm_supervisor.simulator.knobs import KnobError, Knobs, count_start, knobs_from
from vllm_supervisor.simulator.scheduler import Job, Scheduler


@pytest.mark.parametrize(
    "argv",
    [
        ["m", "--tensor-parallel-size", "2", "--enforce-eager"],
        ["--enforce_eager", "m", "--tensor_parallel_size=2"],
        ["m", "-tp", "2", "--no-enable-prefix-caching"],
        ["--model", "m", "-tp=2"],
    ],
)
def test_spellings(argv: list[str]) -> None:
    """Dashes, underscores, equals signs, abbreviations and negations are understood; switches swallow no model."""
    args, sim = parse(argv, {})
    assert (args.model, args.tensor_parallel_size, sim) == ("m", 2, {})


def test_lists_and_dotted_flags() -> None:
    """Lists end at the next flag; `-cc.mode` belongs to the flag before its dot."""
    args, _ = parse(
        ["m", "--served-model-name", "a", "b", "--compilation-config.mode", "3", "-O3", "--lora-modules", "x=/y"], {}
    )
    assert (args.served_names, args.name, args.loras) == (("a", "b"), "a", (("x", "/y"),))
    assert args.given["optimization_level"] == 3


def test_config_file(tmp_path: Path) -> None:
    """A flat --config file is read, and the command line wins."""
    file = tmp_path / "vllm.yaml"
    file.write_text("port: 1234 # of old\nserved_model_name:\n  - a\n  - b\nenforce-eager: true\nmax-num-seqs: 7\n")
    args, _ = parse(["m", "--config", str(file), "--port", "99"], {})
    assert (args.port, args.served_names, args.max_num_seqs) == (99, ("a", "b"), 7)


@pytest.mark.parametrize(
    "argv", [["m", "--port"], ["m", "--api-key"], ["m", "n"], ["m", "--config", "/nonexistent"], ["m", "--port", "x"]]
)
def test_wrong_usage(argv: list[str]) -> None:
    """Missing and surplus values are usage errors."""
    with pytest.raises(UsageError):
        parse(argv, {})


def test_flags_win_over_variables() -> None:
    """Kinds are converted; a switch needs no value; `0` switches off; other SIM_ variables are left alone."""
    knobs = knobs_from(
        {"SIM_LOAD_SECONDS": "3", "SIM_SHARDS": "9", "SIM_HEALTH_HANG": "0", "SIM_CARD": "x"},
        {"load_seconds": "0.5", "never_ready": None},
    )
    assert knobs == Knobs(load_seconds=0.5, shards=9, never_ready=True)
    for flags in ({"nonsense": "1"}, {"shards": "many"}, {"shards": None}, {"exit_phase": "never"}):
        with pytest.raises(KnobError):
            knobs_from({}, flags)


@pytest.mark.parametrize(
    ("spec", "faulty"),
    [(None, [1, 2, 3, 4]), ("2", [1, 2]), ("0", []), ("2-3", [2, 3]), ("3-", [3, 4]), ("-1", [1])],
)
def test_fault_starts(tmp_path: Path, spec: str | None, faulty: list[int]) -> None:
    """Starts are counted in the directory; outside the range faults are off and the pace is kept."""
    knobs = Knobs(state_dir=str(tmp_path / "new"), fault_starts=spec, exit_code=3, load_seconds=0.5)
    found = [start for start in range(1, 5) if count_start(knobs).exit_code is not None]
    assert found == faulty
    assert count_start(knobs).load_seconds == 0.5


def test_scheduler_queues_and_preempts() -> None:
    """First come, first served; the cache bounds who runs; the last to come is the first to be preempted."""
    scheduler = Scheduler(max_seqs=2, kv_tokens=10)
    for name in "abc":
        scheduler.add(Job(name, 3, 4, "length"))
    first = scheduler.step()
    assert (first.outputs, first.prompt_tokens, scheduler.waiting) == ((("a", None), ("b", None)), 6, 1)
    assert scheduler.kv_usage == 0.8
    scheduler.step()
    third = scheduler.step()
    assert (third.preempted, scheduler.running, scheduler.waiting) == (1, 1, 2)
    finished = [name for _ in range(30) for name, reason in scheduler.step().outputs if reason]
    assert finished == ["a", "b", "c"]
    assert (scheduler.kv_usage, scheduler.busy) == (0.0, False)


def test_scheduler_abort_frees() -> None:
    """An aborted request gives back its cache, whether it ran or waited."""
    scheduler = Scheduler(max_seqs=1, kv_tokens=100)
    scheduler.add(Job("a", 10, 5, "length"))
    scheduler.add(Job("b", 10, 5, "length"))
    scheduler.step()
    for name in ("b", "a", "unknown"):
        scheduler.abort(name)
    assert (scheduler.running, scheduler.waiting, scheduler.kv_usage) == (0, 0, 0.0)


def test_a_download_comes_into_the_cache_as_the_hubs_client_lays_it_out(tmp_path: Path) -> None:
    """Bit by bit under a name that says so, then as a whole; what is there already takes no time."""
    blobs = tmp_path / "hub/models--o--m/blobs"
    waited: list[float] = []
    sizes: list[int] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        sizes.append((blobs / "abc.incomplete").stat().st_size)

    knobs = Knobs(download_bytes=5000, download_seconds=10.0)
    for _ in range(2):
        download("o/m", knobs, {"HF_HOME": str(tmp_path)}, wait)
        assert sum(waited) == pytest.approx(10.0)
    assert sizes == list(range(100, 5001, 100))
    commit = (blobs.parent / "refs/main").read_text()
    assert (blobs.parent / "snapshots" / commit / "model.safetensors").stat().st_size == 5000
    index = json.loads((blobs.parent / "snapshots" / commit / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 5000}
    assert [file.name for file in blobs.iterdir()] == ["abc"]


def test_imports_stay_cheap() -> None:
    """The standard library's heavy parts stay out: hundreds of tests pay for each import."""
    heavy = ["argparse", "asyncio", "ctypes", "dataclasses", "inspect", "logging", "pathlib", "ssl", "subprocess"]
    code = f"import sys; import vllm_supervisor.simulator.main; print(*[m for m in {heavy} if m in sys.modules])"
    root = str(Path(__file__).parents[2])
    # -S, and the path by hand: what the environment's own hooks import is not ours.
    command = [sys.executable, "-S", "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": root})
    assert printed.stdout.strip() == ""
