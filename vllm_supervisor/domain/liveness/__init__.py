"""Whether a ready engine still steps."""

from vllm_supervisor.domain.liveness.series import (
    Pending,
    Rank,
    Series,
    answered,
    asked,
    begin,
    loaded,
    looked,
    suspended,
)
from vllm_supervisor.domain.liveness.verdict import (
    Judgement,
    Limits,
    Liveness,
    canary_deadline,
    canary_due,
    judge,
    load_due,
    proof_due,
    rank_in_doubt,
)

__all__ = [
    "Judgement",
    "Limits",
    "Liveness",
    "Pending",
    "Rank",
    "Series",
    "answered",
    "asked",
    "begin",
    "canary_deadline",
    "canary_due",
    "judge",
    "load_due",
    "loaded",
    "looked",
    "proof_due",
    "rank_in_doubt",
    "suspended",
]
