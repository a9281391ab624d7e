"""The exception at the end of a traceback: where no signature knows it, and where its frames say what it means."""

import pytest

from tests.domain.diagnosis.feeding import in_bulk, line_by_line
from tests.domain.diagnosis.snippets import DEAD, ERR, FAILED, FATAL, GIVEN_UP, NEW, READY, SERVING
from vllm_supervisor.domain.diagnosis import Context, Diagnoser, Diagnosis, Scanner
from vllm_supervisor.domain.diagnosis.tracebacks import MAX_TRACEBACKS

HEADER = "Traceback (most recent call last):\n"
FRAME = f'{ERR}  File "/x/models/acme.py", line 88, in load_parts\n{ERR}    raise Odd(name)\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
IMPORT = (
    HEADER + '  File "/venv/bin/vllm", line 4, in <module>\n    from vllm.entrypoints.cli.main import main\n'
    '  File "/venv/lib/python3.12/site-packages/vllm/__init__.py", line 9, in <module>\n    import torch\n'
    "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory\n"
)
MAIN = HEADER + '  File "/venv/bin/vllm", line 10, in <module>\n    sys.exit(main())\n'


def found(log: str, context: Context | None = None) -> Diagnosis:
    """Return the diagnosis, which both ways of feeding have to agree upon."""
    diagnosis = line_by_line(log, context)
    assert diagnosis == in_bulk(log, context) == in_bulk(log, context, chunk=7)
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize("exception", ["KeyError: 'layers.0.w2'", "acme.parts.Odd: what is this", "AssertionError"])
def test_a_start_that_failed_of_something_unknown_names_it(exception: str) -> None:
    """The exception, its line, where it was raised; whatever its name, and not that the log says nothing."""
    log = NEW + FAILED + FRAME + ERR + exception + "\n" + GIVEN_UP
    diagnosis = found(log)
    assert (diagnosis.cls, diagnosis.evidence) == ("engine_core_init_failed", exception)
    assert diagnosis.line == log[: log.index(ERR + exception)].count("\n") + 1
    name = exception.partition(":")[0].rpartition(".")[2]
    assert diagnosis.summary.startswith(f"the engine did not start: {name} ")
    assert "/x/models/acme.py:88 in load_parts" in diagnosis.action
    assert "explain engine_core_init_failed" in diagnosis.action


def test_only_a_log_without_an_exception_does_not_say_why() -> None:
    """The lines that give up are consequences."""
    for log in (NEW + GIVEN_UP, NEW + MAIN + GIVEN_UP):
        assert found(log).summary == "the engine did not start, and the log does not say why"


def test_the_first_of_a_chain_is_the_cause() -> None:
    """A worker's, then what EngineCore and the API server make of it."""
    worker = "(Worker_TP1 pid=12) ERROR 09-02 08:02:00 [multiproc_executor.py:772] "
    log = (
        f"{NEW}{worker}WorkerProc failed to start.\n{worker}{HEADER}{worker}"
        f"  File \"/x/a.py\", line 1, in f\n{worker}KeyError: 'first'\n{worker}\n{worker}During handling of the above "
        f"exception, another exception occurred:\n{worker}{HEADER}{worker}LookupError: second\n"
        f"{FAILED}{ERR}Exception: WorkerProc initialization failed due to an exception in a background process. "
        f"See stack trace for root cause.\n{MAIN}{GIVEN_UP}"
    )
    assert found(log).evidence == "KeyError: 'first'"


def test_an_exception_before_the_line_that_gives_up() -> None:
    """V0's child prints its traceback first; one that a library printed long before is not taken for it."""
    noise = HEADER + '  File "/x/a.py", line 1, in f\nLookupError: harmless\n' + "plain text\n" * 300
    child = HEADER + '  File "/x/b.py", line 1, in f\nLookupError: the cause\n'
    log = NEW + noise + child + "RuntimeError: Engine process failed to start. See stack trace for the root cause.\n"
    assert found(log).evidence == "LookupError: the cause"


def test_workers_that_print_at_once() -> None:
    """Lines of two tracebacks between each other."""
    one, two = (f"(Worker_TP{n} pid={n}) ERROR 09-02 08:02:00 [a.py:7] " for n in (1, 2))
    mixed = "".join(
        f"{who}{line}\n" for line in (HEADER.strip(), '  File "/x/a.py", line 1, in f') for who in (one, two)
    )
    log = NEW + f"{one}WorkerProc failed to start.\n" + mixed + f"{one}KeyError: 'a'\n{two}KeyError: 'b'\n" + GIVEN_UP
    assert found(log).evidence == "KeyError: 'a'"


def test_a_death_while_serving_names_its_exception() -> None:
    """The traceback under the loop's last words."""
    log = NEW + SERVING + FATAL + ERR + HEADER + FRAME + ERR + "AssertionError: num_new_tokens > 0\n" + DEAD
    diagnosis = found(log, Context(exit_code=0))
    assert (diagnosis.cls, diagnosis.evidence) == ("engine_core_died", "AssertionError: num_new_tokens > 0")
    assert "AssertionError" in diagnosis.summary
    assert found(NEW + SERVING + FATAL + DEAD).summary == "the engine's process died, and the log does not say why"


def test_the_cause_behind_what_announces_it() -> None:
    """`raised:`, or pydantic's count, ends a line; what was raised stands in the next one."""
    line = "torch._dynamo.exc.BackendCompilerFailed: backend='x' raised:"
    log = NEW + FAILED + FRAME + f"{ERR}{line}\n{ERR}AssertionError: not removed\n" + GIVEN_UP
    assert found(log).cls == "torch_compile_failure"
    assert found(log).evidence == f"{line} AssertionError: not removed"
    pydantic = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for EngineArgs\nfield.inner\n"
        "  Value error, the two do not go together [type=value_error]\n"
    )
    log = NEW + FAILED + ERR + pydantic.replace("\n", f"\n{ERR}", 2) + GIVEN_UP
    evidence = found(log).evidence
    assert evidence is not None
    assert evidence.endswith(
        "1 validation error for EngineArgs Value error, the two do not go together [type=value_error]"
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("load_model", "the weights do not fit"),
        ("profile_run", "the profiling run did not"),
        ("initialize_from_config", "the weights and the cache are in place"),
        ("capture_model", "graph capture needs room"),
    ],
)
def test_frames_tell_the_stage(function: str, words: str) -> None:
    """A tail that begins in the traceback: no line of a stage is left of the log."""
    frame = f'{ERR}  File "/x/gpu_worker.py", line 5, in {function}\n{ERR}    go()\n'
    assert words in found(FAILED + frame + ERR + OOM + GIVEN_UP).action


def test_the_same_words_mean_what_their_frames_say() -> None:
    """A full disk, and a semaphore that finds no room; the other reading is not named beside."""
    error = ERR + "OSError: [Errno 28] No space left on device\n"
    semaphore = f'{ERR}  File "/usr/lib/python3.12/multiprocessing/synchronize.py", line 57, in __init__\n'
    assert found(NEW + FAILED + FRAME + error + GIVEN_UP).cls == "disk_full"
    diagnosis = found(NEW + FAILED + semaphore + error + GIVEN_UP)
    assert (diagnosis.cls, diagnosis.secondary) == ("shm_too_small", ())


def runs(log: str) -> tuple[str | None, str | None]:
    """Return the class of the log, and that of the run before, both ways."""
    diagnoser, bulk = Diagnoser(), Diagnoser()
    for line in log.split("\n"):
        diagnoser.feed(line)
    scanner = Scanner(bulk)
    scanner.feed(log.encode())
    scanner.finish()
    assert (diagnoser.verdict(), diagnoser.earlier()) == (bulk.verdict(), bulk.earlier())
    last, before = diagnoser.verdict(), diagnoser.earlier()
    return (None if last is None else last.cls), (None if before is None else before.cls)


@pytest.mark.parametrize("before", [NEW + FAILED + ERR + OOM + MAIN + GIVEN_UP, NEW + FAILED + ERR + OOM + GIVEN_UP])
def test_a_start_that_ends_before_its_banner_counts_as_the_last(before: str) -> None:
    """argparse and broken imports end it before vLLM says anything of itself."""
    assert runs(before + IMPORT) == ("cuda_runtime_mismatch", "oom_at_load")
    usage = "usage: vllm serve [model_tag] [options]\nvllm serve: error: unrecognized arguments: --no-such\n"
    assert runs(before + usage) == ("bad_cli_argument", "oom_at_load")
    assert runs(before + usage + usage + IMPORT) == ("cuda_runtime_mismatch", "bad_cli_argument")
    assert runs(before + IMPORT + NEW + READY) == (None, "cuda_runtime_mismatch")


def test_after_a_run_that_served() -> None:
    """The appended failure is the last start's, although the one before had got ready; its own end is none."""
    stopped = NEW + SERVING + "INFO:     Shutting down\nINFO:     Finished server process [7]\n"
    for served in (NEW + SERVING, stopped):
        assert runs(served + IMPORT) == ("cuda_runtime_mismatch", None)
        assert runs(served + "vllm: error: unrecognized arguments: --x\n") == ("bad_cli_argument", None)
    assert runs(stopped + MAIN + "ValueError: Unsupported option 3\n") == ("bad_cli_argument", None)


def test_the_end_of_the_same_start_is_no_other_one() -> None:
    """The API server's traceback after the engine's stays with it."""
    log = NEW + FAILED + ERR + OOM + MAIN + "ValueError: Unsupported option 3\n"
    assert runs(log) == ("oom_at_load", None)


def test_requests_tracebacks_are_left_alone() -> None:
    """What is raised while serving, by whatever prints it, is no cause of a later death."""
    request = f"ERROR 09-02 08:02:00 [x.py:1] {HEADER}" + FRAME + f"{ERR}LookupError: of a request\n"
    assert line_by_line(NEW + SERVING + request) is None
    assert in_bulk(NEW + SERVING + request) is None
    assert found(NEW + SERVING + request + FATAL + DEAD).summary.endswith("the log does not say why")


def test_tracebacks_without_end() -> None:
    """A loop that prints them is followed for a while, and no longer; what it raised is bounded."""
    diagnoser = Diagnoser()
    loop = HEADER + '  File "/x/a.py", line 1, in f\nLookupError: again\n'
    for line in NEW.splitlines() + loop.splitlines() * (MAX_TRACEBACKS + 100):
        diagnoser.feed(line)
    assert not diagnoser.heeds_every_line
    assert len(diagnoser._now.raised) <= 32
    diagnoser.feed(HEADER)
    assert not diagnoser.heeds_every_line


def test_a_deep_traceback_names_where_it_was_raised() -> None:
    """Frames beyond what is kept: the last one is told all the same, and the first ones are not lost."""
    deep = "".join(f'{ERR}  File "/x/{"deep/" * 60}a.py", line {n}, in f{n}\n' for n in range(230))
    log = NEW + FAILED + deep + FRAME + ERR + "acme.Odd: deep down\n" + GIVEN_UP
    assert found(log).evidence == "acme.Odd: deep down"
    assert "/x/models/acme.py:88 in load_parts" in found(log).action


def test_the_exceptions_that_are_kept() -> None:
    """Hundreds that harmed nothing: of those before a death the last ones count, of those after it the first ones."""
    caught = "".join(f'{HEADER}  File "/x/a.py", line 1, in f\nLookupError: {n} was caught\n' for n in range(60))
    child = HEADER + '  File "/x/b.py", line 1, in f\nLookupError: the cause\n'
    died = "RuntimeError: Engine process failed to start. See stack trace for the root cause.\n"
    assert found(NEW + caught + "text\n" * 300 + child + died).evidence == "LookupError: the cause"
    after = found(NEW + FAILED + FRAME + ERR + "KeyError: 'cause'\n" + caught.replace("caught", "lost") + GIVEN_UP)
    assert after.evidence == "KeyError: 'cause'"


def test_a_start_that_failed_with_a_warning_alone() -> None:
    """No line says that a process died badly, and so no exception of the log is taken for its cause."""
    log = NEW + "WARNING 09-02 08:02:00 [core.py:1330] EngineCore failed to start.\n"
    diagnosis = found(log, Context(exit_code=1))
    assert diagnosis.cls == "engine_core_init_failed"
    assert diagnosis.summary == "the engine did not start, and the log does not say why"
