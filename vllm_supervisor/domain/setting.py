"""What is known beside the samples: what clients send, and what caps it on the way."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """None is not known. `concurrency` is what a client keeps in flight; `said`: somebody vouches for it."""

    concurrency: int | None = None
    said: bool = False
    configured: int | None = None
    """`engine.vllm.concurrency`."""
    max_concurrent_jobs: int | None = None
    """`resources.max_concurrent_jobs`: lowers what is advertised."""
    max_num_seqs: int | None = None
    max_concurrency: float | None = None
    """`kv_cache_max_concurrency`: requests of the greatest length that fit the KV cache."""
    kv_tokens: int | None = None
    max_model_len: int | None = None
    kv_cache_dtype: str | None = None
    max_num_batched_tokens: int | None = None
