"""Out of GPU memory: at which stage, because the remedies are opposite."""

from vllm_supervisor.domain.diagnosis.evidence import Evidence

_REMEDIES = {
    "run": (
        "leave room outside the pool: lower --gpu-memory-utilization by 0.05 or --max-num-seqs; a restart helps only "
        "until the next peak"
    ),
    "graphs": (
        "graph capture needs room outside the pool: lower --gpu-memory-utilization by 0.05, or capture fewer sizes "
        "(--max-num-seqs, or --enforce-eager at the cost of speed)"
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
