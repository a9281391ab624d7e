import os

from hypothesis import settings

# The default repeats the same examples each time, so that `make test` is deterministic; the others look for new ones.
# No deadline per example: on a busy machine it would measure the neighbours.
settings.register_profile(
    "dev", max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
settings.register_profile("ci", max_examples=400, stateful_step_count=60, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, stateful_step_count=100, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
