import gc
import os
import signal

from hypothesis import Phase, settings

# The default repeats the same examples each time, so that `make test` is deterministic, and so does the short profile,
# which a change has to pass before it lands; the long one looks for new ones.
# No deadline per example: on a busy machine it would measure the neighbours. No explain phase: it takes minutes after a
# failure of the stateful test, longer than a test may last, and then nothing is reported at all.
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink]
settings.register_profile(
    "dev", max_examples=60, stateful_step_count=40, deadline=None, phases=_PHASES, derandomize=True, database=None
)
settings.register_profile(
    "short", max_examples=400, stateful_step_count=60, deadline=None, phases=_PHASES, derandomize=True, database=None
)
settings.register_profile(
    "long", max_examples=5000, stateful_step_count=100, deadline=None, phases=_PHASES, print_blob=True
)
# Few, the same each time, and without shrinking: of a mutant it matters only that something fails.
settings.register_profile(
    "mutate",
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    database=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell's background job has SIGINT ignored, and what nohup starts SIGHUP, and so has all that they start: what is to
# be interrupted would not be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What collection makes stays to the end: looking through it for garbage again and again took a third of its time.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave to the collector what the tests make."""
    gc.freeze()
    gc.enable()
