"""Out of GPU memory: at which stage, because the remedies are opposite."""

import re

from vllm_supervisor.domain.diagnosis.evidence import Evidence
from vllm_supervisor.domain.diagnosis.tracebacks import Tracebacks

_FRAMES = (
    ("graphs", re.compile(r"in (?:capture_model|_capture_cudagraphs)\b")),
    ("cached", re.compile(r"in (?:compile_or_warm_up_model|kernel_warmup|initialize_from_config|initialize_cache)\b")),
    ("loaded", re.compile(r"in (?:profile_run|determine_available_memory|determine_num_available_blocks)\b")),
    ("load", re.compile(r"in (?:load_model|create_weights|process_weights_after_loading)\b")),
)
"""Functions of the workers, 0.6 to 0.33, innermost first: a tail without the lines of the stages shows them too."""

_REMEDIES = {
    "run": (
        "leave room outside the pool: lower --gpu-memory-utilization by 0.05 or --max-num-seqs; a restart helps only "
        "until the next peak"
    ),
    "graphs": (
        "graph capture needs room outside the pool: lower --gpu-memory-utilization by 0.05, or capture fewer sizes "
        "(--max-num-seqs, or --enforce-eager at the cost of speed)"
    ),
    "cached": (
        "the weights and the cache are in place, and what the warm-up needs has no room beside them: lower "
        "--gpu-memory-utilization by 0.05, or --max-num-seqs"
    ),
    "loaded": (
        "the weights fit, the profiling run did not: lower --max-num-batched-tokens, --max-num-seqs or the "
        "multimodal limits"
    ),
    "load": (
        "the weights do not fit, and no --gpu-memory-utilization changes that: more GPUs (--tensor-parallel-size), a "
        "quantized checkpoint, or a larger card; check first that nothing else holds memory (`nvidia-smi`)"
    ),
}


def stage_of(tracebacks: Tracebacks, number: int) -> str | None:
    """Return the stage that the traceback of line `number` passes through; None where it shows none."""
    return next((stage for stage, frame in _FRAMES if tracebacks.passed(frame, number)), None)


def oom_class(evidence: Evidence) -> str:
    """Return the class of an out-of-memory error, from what the engine was doing.

    The tail of a log need not contain readiness: then the words of the engine's loop decide.
    """
    if evidence.first_oom_stage == "run":
        return "oom_runtime"
    if evidence.start_failure:
        return "oom_at_load"
    return "oom_runtime" if evidence.run_time_failure else "oom_at_load"


def oom_remedy(evidence: Evidence) -> str:
    """Return what helps at the stage in which memory ran out."""
    if oom_class(evidence) == "oom_runtime":
        return _REMEDIES["run"]
    return _REMEDIES.get(evidence.first_oom_stage or "load", _REMEDIES["load"])
