"""What `size` found out, and how it prints it for programs."""

from dataclasses import dataclass
from typing import Any

from vllm_supervisor.adapters.host.checkpoint import Checkpoint
from vllm_supervisor.domain.capacity.measured import Key
from vllm_supervisor.domain.capacity.remedies import Remedy
from vllm_supervisor.domain.capacity.sizing import Sizing
from vllm_supervisor.domain.units import dotted


@dataclass(frozen=True, slots=True)
class Answer:
    """All there is to say. `sizing` has the figures of the start `past`, where there was one; `estimate` has not."""

    model: str
    found: Checkpoint
    sizing: Sizing
    estimate: Sizing
    past: Key | None
    helps: tuple[Remedy, ...]
    remark: str = ""


def as_json(answer: Answer) -> dict[str, Any]:
    """Return all figures; bytes, and per GPU where nothing else is said. null where a figure does not exist."""
    sizing, found = answer.sizing, answer.found
    architecture, room, context = sizing.model.architecture, sizing.room, sizing.request
    return {
        "model": answer.model,
        "architecture": architecture.name,
        "fits": sizing.fits,
        "tight": sizing.tight,
        "weights_bytes": sizing.weights.rank,
        "weights_bytes_whole_model": sizing.weights.whole,
        "checkpoint_bytes": sizing.weights.stored,
        "doubtful": _doubtful(sizing),
        "weights_source": found.source if sizing.weights.source == "checkpoint" else sizing.weights.source,
        "overhead_bytes": {
            "likely": sizing.overhead.likely,
            "least": sizing.overhead.least,
            "most": sizing.overhead.most,
        },
        "kv_budget_bytes": sizing.budget,
        "kv_budget_bytes_range": list(sizing.budget_range),
        "kv_bytes_per_token": _per_token(sizing),
        "kv_bytes_per_token_within_windows": sizing.per_token.at_first if sizing.per_token else _per_token(sizing),
        "kv_bytes_per_request": sizing.request_bytes,
        "max_tokens": room.tokens if room else None,
        "max_concurrency": round(room.concurrency, 2) if room else None,
        "realistic": {"context": context[0], "output": context[1], "concurrency": sizing.at_once},
        "assumed": _assumed(sizing),
        "parameters": architecture.total,
        "active_parameters": architecture.active,
        "not_counted": list(architecture.uncounted) if sizing.model.found is None else [],
        "remedies": [_remedy_json(one) for one in answer.helps],
        "estimated": _figures(answer.estimate),
        "measured": _measured(answer),
    }


def _figures(sizing: Sizing) -> dict[str, Any]:
    room = sizing.room
    return {
        "weights_bytes": sizing.weights.rank,
        "kv_budget_bytes": sizing.budget,
        "max_tokens": room.tokens if room else None,
        "max_concurrency": round(room.concurrency, 2) if room else None,
    }


def _doubtful(sizing: Sizing) -> dict[str, int] | None:
    """Return what does not agree: a checkpoint far from what its configuration counts."""
    if sizing.doubtful is None:
        return None
    found, counted = sizing.doubtful
    return {"checkpoint_bytes": found, "counted_bytes": counted}


def _measured(answer: Answer) -> dict[str, Any] | None:
    known = answer.sizing.measured
    if known is None or answer.past is None:
        return None
    return {
        "vllm_version": answer.past.vllm_version,
        "gpu": answer.past.gpu,
        "weights_bytes": known.weights,
        "kv_budget_bytes": known.kv_cache,
        "graphs_bytes": known.graphs,
        "max_tokens": known.tokens,
        "max_concurrency": known.concurrency,
        "request_tokens": known.request_tokens,
    }


def _per_token(sizing: Sizing) -> int | None:
    if sizing.per_token is not None:
        return sizing.per_token.ever
    return None if sizing.model.architecture.caches else 0


def _assumed(sizing: Sizing) -> dict[str, Any]:
    layout, gpus = sizing.ask.layout, sizing.gpus
    return {
        "gpu": gpus.name or None,
        "gpu_memory_bytes": gpus.memory,
        "gpus": gpus.count,
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
        "data_parallel_size": layout.data,
        "gpu_memory_utilization": sizing.utilization,
        "max_model_len": sizing.max_len,
        "max_num_batched_tokens": sizing.ask.batched_tokens or sizing.rules.batched_tokens,
        "max_num_seqs": sizing.sequences,
        "kv_cache_dtype": sizing.kv_dtype,
        "quantization": sizing.loaded.method,
        "block_size": sizing.pool.block if sizing.pool else None,
        "vllm_version": dotted(sizing.rules.version),
    }


def _remedy_json(remedy: Remedy) -> dict[str, Any]:
    after = remedy.sizing
    return {
        "change": remedy.change,
        "note": remedy.note,
        "fits": after.fits,
        "weights_bytes": after.weights.rank,
        "kv_budget_bytes": after.budget,
        "max_tokens": after.room.tokens if after.room else None,
        "max_concurrency": round(after.room.concurrency, 2) if after.room else None,
    }
