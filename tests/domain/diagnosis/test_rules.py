"""Rules of the field: which of several findings is the cause, and what does not count."""

import pytest

from tests.domain.diagnosis.feeding import in_bulk, line_by_line
from tests.domain.diagnosis.snippets import (
    DEAD,
    ERR,
    FAILED,
    FATAL,
    GIVEN_UP,
    LOADING,
    MID,
    NEW,
    OLD,
    READY,
    SERVING,
    started_badly,
)
from vllm_supervisor.domain.diagnosis import Context, Diagnoser, Diagnosis, Observed, Retry, Scanner

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"


def found(log: str, context: Context | None = None) -> Diagnosis:
    """Return the diagnosis, which both ways of feeding have to agree upon."""
    diagnosis = line_by_line(log, context)
    assert diagnosis == in_bulk(log, context)
    assert diagnosis is not None
    return diagnosis


def test_the_earliest_cause_wins_over_the_last_exception() -> None:
    """A chain of exceptions ends in consequences."""
    log = (
        started_badly("PermissionError: [Errno 13] Permission denied: '/cache'")
        + "OSError: [Errno 98] Address already in use\n"
    )
    assert found(log).cls == "permission_denied"
    assert found(log).secondary == ("port_in_use",)


def test_an_empty_list_of_processes_says_nothing() -> None:
    """The line that gives up yields to any cause above it, and is itself only that."""
    assert found(NEW + FAILED + ERR + OOM + GIVEN_UP).cls == "oom_at_load"
    assert found(NEW + GIVEN_UP).cls == "engine_core_init_failed"


def test_deaths_are_consequences() -> None:
    """Whatever died, the error above is the cause; the deaths are named beside it, and the status 0."""
    diagnosis = found(NEW + SERVING + FATAL + ERR + OOM + DEAD, Context(exit_code=0))
    assert diagnosis.cls == "oom_runtime"
    assert diagnosis.secondary == ("engine_core_died", "exit_0_on_engine_death")


def test_a_worker_is_nearer_to_the_cause_than_the_engine() -> None:
    """Whichever line comes first."""
    assert (
        found(NEW + SERVING + FATAL + ERR + "Worker proc W-0 died unexpectedly, shutting down executor.\n" + DEAD).cls
        == "worker_died"
    )


@pytest.mark.parametrize("exit_code", [137, -9, 1, 255, 143, 134])
def test_a_status_alone_proves_nothing(exit_code: int) -> None:
    """SIGKILL may come from anybody; a log that shows no failure stays without a class."""
    for log in (NEW + LOADING, NEW + SERVING, ""):
        assert line_by_line(log, Context(exit_code=exit_code)) is None


@pytest.mark.parametrize(
    ("exit_code", "cls"), [(139, "segfault"), (-11, "segfault"), (132, "illegal_instruction"), (-7, "shm_too_small")]
)
def test_some_signals_speak(exit_code: int, cls: str) -> None:
    """These are sent by the kernel alone."""
    assert found(NEW + SERVING, Context(exit_code=exit_code)).cls == cls
    assert found(NEW + SERVING, Context(signal=-exit_code if exit_code < 0 else exit_code - 128)).cls == cls


def test_our_own_kill_is_no_oom_kill() -> None:
    """A shell's `Killed`, the workers that died with it: nothing of that is a failure if we killed."""
    log = NEW + SERVING + ERR + "Worker proc W-0 died unexpectedly (exit code: -9), shutting down executor.\nKilled\n"
    assert line_by_line(log, Context(exit_code=-9, killed_by_us=True)) is None
    assert found(log, Context(exit_code=-9, killed_by_us=True, observed=Observed.HANG)).cls == "hang_health_ok"
    assert found(OLD + "Killed\n", Context(exit_code=137)).cls == "host_oom_kill"
    assert line_by_line(OLD + "Killed\n", Context(exit_code=137, oom_kills=0)) is None


def test_a_kill_of_its_own_tree_is_no_oom_kill() -> None:
    """0.8.0 to 0.8.2 end themselves with SIGKILL."""
    log = (
        MID
        + "CRITICAL 04-07 10:56:15 [core_client.py:1] Got fatal signal from worker processes, shutting down.\nKilled\n"
    )
    assert found(log, Context(exit_code=137)).cls == "engine_core_died"
    assert found(log, Context(exit_code=137)).secondary == ()


def test_the_cgroups_counter_outweighs_a_death() -> None:
    """The counter is proof; a cause in the log is still nearer."""
    log = NEW + SERVING + ERR + "Worker proc W-0 died unexpectedly (exit code: -9), shutting down executor.\n"
    diagnosis = found(log, Context(oom_kills=1))
    assert (diagnosis.cls, diagnosis.line, diagnosis.secondary) == ("host_oom_kill", None, ("worker_died",))
    assert found(NEW + FAILED + ERR + OOM, Context(oom_kills=1)).cls == "oom_at_load"


@pytest.mark.parametrize(("xid", "cls"), [(79, "gpu_fault"), (119, "gpu_fault"), (94, "ecc_error"), (48, "ecc_error")])
def test_xids_explain_a_death(xid: int, cls: str) -> None:
    """Hardware events name what the log only suffers."""
    assert found(NEW + SERVING + FATAL + DEAD, Context(xids=(13, xid))).cls == cls


@pytest.mark.parametrize("observed", Observed)
def test_what_the_daemon_saw_has_a_class(observed: Observed) -> None:
    """Where the log shows no cause; where it does, the log wins."""
    assert found(NEW + LOADING, Context(observed=observed, killed_by_us=True)).cls == observed.value
    assert found(NEW + FAILED + ERR + OOM, Context(observed=observed)).cls == "oom_at_load"


def test_status_0_of_a_served_engine() -> None:
    """Nobody asked, nothing is in the log: at least the status is odd. Asked for, it is not."""
    assert found(NEW + SERVING, Context(exit_code=0, was_ready=True)).cls == "exit_0_on_engine_death"
    assert line_by_line(NEW + SERVING, Context(exit_code=0, was_ready=True, stop_requested=True)) is None


def test_out_of_memory_has_opposite_remedies() -> None:
    """The stage decides: while loading, utilization is irrelevant."""
    assert "no --gpu-memory-utilization changes that" in found(NEW + LOADING + FAILED + ERR + OOM + GIVEN_UP).action
    graphs = "Capturing CUDA graphs (decode, FULL):  11%|#| 4/35 [00:01<00:09]\n"
    assert "lower --gpu-memory-utilization" in found(NEW + LOADING + graphs + FAILED + ERR + OOM + GIVEN_UP).action
    assert found(NEW + SERVING + ERR + OOM).cls == "oom_runtime"


def test_what_the_start_survived_does_not_count() -> None:
    """An import that failed and was not needed is no cause of a death a day later."""
    log = NEW + "ImportError: x.so: undefined symbol: foo\n" + SERVING
    assert line_by_line(log) is None
    assert found(log + FATAL + DEAD).cls == "engine_core_died"


def test_what_a_request_provoked_counts_only_at_a_death() -> None:
    """A refused adapter is an answer; one that took the engine down is the cause."""
    refused = (
        "(EngineCore pid=9) ERROR 09-02 08:02:00 [x.py:1] ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n"
    )
    assert line_by_line(NEW + SERVING + refused) is None
    assert found(NEW + SERVING + FATAL + refused + DEAD).cls == "lora_rank_error"
    hours = "INFO 09-02 08:02:00 [x.py:1] something\n" * 500
    assert found(NEW + SERVING + refused + hours + FATAL + DEAD).cls == "engine_core_died"


def earlier(log: str) -> tuple[str | None, str | None]:
    """Return the class of a log, and that of the last run before that failed; both ways of feeding have to agree."""
    diagnoser, bulk = Diagnoser(), Diagnoser()
    for line in log.splitlines():
        diagnoser.feed(line)
    scanner = Scanner(bulk)
    scanner.feed(log.encode())
    scanner.finish()
    assert (diagnoser.verdict(), diagnoser.earlier()) == (bulk.verdict(), bulk.earlier())
    last, before = diagnoser.verdict(), diagnoser.earlier()
    return (None if last is None else last.cls), (None if before is None else before.cls)


MARKER = "[vllm-supervisor] generation {} is launched at 2026-05-01T10:00:00Z\n"


def test_the_last_run_of_a_log_counts() -> None:
    """Logs are appended to. Where the last run has come to nothing yet, the failure before does."""
    first = NEW + FAILED + ERR + OOM + GIVEN_UP
    assert found(first + OLD + "OSError: [Errno 98] Address already in use\n").cls == "port_in_use"
    assert found(first + NEW).line == first[: first.index("OutOfMemory")].count("\n") + 1


@pytest.mark.parametrize("between", ["", MARKER.format(2)])
def test_a_run_that_got_ready_answers_for_its_log(between: str) -> None:
    """What an earlier one failed of is told beside, not in its place."""
    first = MARKER.format(1) + NEW + FAILED + ERR + OOM + GIVEN_UP
    assert earlier(first + between + NEW + SERVING) == (None, "oom_at_load")
    assert earlier(first + between + NEW + SERVING + FATAL + DEAD) == ("engine_core_died", "oom_at_load")
    assert earlier(first + between + NEW + LOADING) == ("oom_at_load", "oom_at_load")
    assert earlier(NEW + SERVING + between + NEW + SERVING) == (None, None)


def test_our_line_begins_a_run_that_prints_no_banner() -> None:
    """Wrong flags, or a library that is missing, end a start before vLLM says anything of itself."""
    usage = "usage: vllm [-h]\nvllm: error: unrecognized arguments: --no-such-flag\n"
    assert earlier(MARKER.format(7) + NEW + SERVING + MARKER.format(8) + usage) == ("bad_cli_argument", None)
    assert earlier(MARKER.format(7) + usage + MARKER.format(8) + NEW + SERVING) == (None, "bad_cli_argument")
    assert earlier(MARKER.format(7) + usage + MARKER.format(8) + READY) == (None, "bad_cli_argument")


def test_the_kubelets_word_is_taken_however_deep_it_is_indented() -> None:
    """`kubectl describe pod`, pasted under the log of a container that was killed."""
    described = (
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
        "      Started:      Sat, 29 Nov 2025 10:00:00 +0000\n"
    )
    assert found(NEW + SERVING + described).cls == "host_oom_kill"
    assert found(described).evidence == "Reason:       OOMKilled"
    assert line_by_line(NEW + SERVING + described.replace("OOMKilled", "Completed")) is None


def test_evidence_begins_and_ends_with_a_word() -> None:
    """A long line is cut between words, and says so; what was found in it is in what is left."""
    cause, letters = "OSError: [Errno 98] Address already in use", "letters " * 100
    evidence = found(f"{OLD}{cause} {letters}\n").evidence
    assert evidence is not None
    assert evidence.startswith(cause)
    assert evidence.endswith("letters …")
    assert len(evidence) <= 402
    evidence = found(f"{OLD}ValueError: unknown quantization {letters}{cause} {letters}\n").evidence
    assert evidence is not None
    assert evidence.startswith("… letters ")
    assert "Address already in use letters" in evidence
    assert evidence.endswith("letters …")
    assert len(evidence) <= 402


def test_an_outage_passes_and_a_missing_cache_does_not() -> None:
    """The default verdict is refined by evidence."""
    outage = (
        "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/x\n"
    )
    assert found(OLD + outage).retry is Retry.TRANSIENT
    assert (
        found(OLD + "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files\n").retry
        is Retry.PERMANENT
    )


def test_a_wait_that_ended_does_not_count() -> None:
    """Ray was late, the start went on, and something else ended it."""
    waited = "INFO 04-01 02:46:00 [ray_utils.py:214] Waiting for creating a placement group of specs for 10 seconds.\n"
    assert found(NEW + waited).cls == "ray_not_ready"
    assert line_by_line(NEW + waited + LOADING) is None
    assert found(NEW + waited + LOADING + FAILED + ERR + OOM).cls == "oom_at_load"


def test_a_frozen_batch_by_its_own_clock() -> None:
    """Few stats lines over a long time are enough, if tokens and cache stand still."""
    line = (
        "INFO 05-02 09:0{}:00 metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 0.0 tokens/s, Running: 2 "
        "reqs, Swapped: 0 reqs, Pending: 20 reqs, GPU KV cache usage: 98.7%, CPU KV cache usage: 0.0%.\n"
    )
    assert found(OLD + READY + "".join(line.format(minute) for minute in range(4))).cls == "hang_health_ok"
    assert line_by_line(OLD + READY + 4 * line.format(1)) is None


def test_evidence_shows_no_token() -> None:
    """It goes into status, events and bundles."""
    log = (
        OLD + "huggingface_hub.errors.HfHubHTTPError: 401 Client Error for token hf_abcdefghijklmnop, Bearer abc.def\n"
    )
    evidence = found(log).evidence
    assert evidence is not None
    assert "hf_abc" not in evidence
    assert "abc.def" not in evidence


def test_the_traceback_of_a_request_ends() -> None:
    """What follows it belongs to the engine again, near or far, although bare lines look alike."""
    request = "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n" + OOM
    between = "INFO 09-02 08:02:00 [x.py:1] something\n"
    assert line_by_line(NEW + SERVING + request + between) is None
    for lines in (1, 5, 5000):
        log = NEW + SERVING + request + between * lines + OOM
        assert found(log).line == log.count("\n")


def test_the_port_of_the_arguments() -> None:
    """The early bind names no address; the arguments that were printed before do."""
    bind = "OSError: [Errno 98] Address already in use\n"
    assert (
        "8077"
        in found(OLD + "INFO 03-02 08:00:01 api_server.py:529] args: Namespace(host=None, port=8077)\n" + bind).action
    )
    args = "(APIServer pid=7) INFO 09-02 08:00:01 [utils.py:233] non-default args: {'model_tag': 'm', 'port': 8077}\n"
    assert "8077" in found(NEW + args + bind).action
    assert "ss -ltnp`" in found(NEW + bind).action


def test_scattered_slow_reads_are_no_hang() -> None:
    """One compilation a day warns once a day; a hang warns every minute, up to the end."""
    read = "(EngineCore pid=9) INFO 10-16 {}:13:30 [shm_broadcast.py:466] No available shared memory "
    read += "broadcast block found in 60 seconds.\n"
    assert line_by_line(NEW + SERVING + "".join(read.format(f"{hour:02}") for hour in range(24))) is None
    assert in_bulk(NEW + SERVING + "".join(read.format(f"{hour:02}") for hour in range(24))) is None
    assert found(NEW + SERVING + read.format("03") + 3 * read.format("09")).cls == "hang_health_ok"


def test_an_end_that_was_asked_for_makes_no_cause_of_a_warning() -> None:
    """The same status is a failed start where nobody asked for the end: then a warning before it may be why."""
    log = NEW + LOADING + "WARNING 09-02 08:02:00 [core.py:1330] " + OOM
    assert found(log, Context(exit_code=1)).cls == "oom_at_load"
    assert line_by_line(log, Context(exit_code=1, stop_requested=True)) is None


def test_stats_lines_that_are_cut_off_tell_nothing() -> None:
    """Six whole ones are a scheduler that stands still; without their figures they only say that it served."""
    whole = (
        "INFO 09-02 08:03:{:02} [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 9 reqs, GPU KV cache usage: 3.0%\n"
    )
    stuck = "".join(whole.format(10 * number) for number in range(6))
    assert found(NEW + SERVING + stuck).cls == "hang_health_ok"
    for size in (len("INFO 09-02 08:03:00 [loggers.py:271] Engine 000: Avg prompt throughput"), whole.index("reqs,")):
        cut = "".join(whole.format(10 * number)[:size] + "\n" for number in range(6))
        assert line_by_line(NEW + SERVING + cut) is None
        assert in_bulk(NEW + SERVING + cut) is None
