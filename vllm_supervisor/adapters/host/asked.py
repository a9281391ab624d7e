"""vLLM's flags, as far as they decide about memory, in the terms of the sizing."""

import re
from collections.abc import Mapping, Sequence

from vllm_supervisor.adapters.host.wanted import Flags
from vllm_supervisor.domain.capacity.rules import Version
from vllm_supervisor.domain.capacity.sizing import DTYPES, Ask
from vllm_supervisor.domain.capacity.weights import Layout
from vllm_supervisor.domain.units import GIB, version
from vllm_supervisor.errors import BadInputError

_CPU_BLOCK = 128
"""vLLM's own `--block-size` on a CPU (platforms/cpu.py, 0.32)."""
_SMALL_BLOCKS, _BLOCK_STEP = (1, 8), 16
"""Values of `--block-size`: up to 0.11 a list of powers of two, since then what the attention backends take."""
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kmgt])(i?)b", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def asked(given: Flags, env: Mapping[str, str]) -> Ask:
    """Return what the flags and the engine's environment ask for. Raises BadInputError for what is no number."""
    space = env.get("VLLM_CPU_KVCACHE_SPACE")
    memory = given.get("kv-cache-memory-bytes")
    on_cpu = memory is None and space is not None
    kv_memory = size("--kv-cache-memory-bytes", memory) if memory is not None else None
    if on_cpu and space is not None:
        kv_memory = size("VLLM_CPU_KVCACHE_SPACE", f"{space}GiB")
    return Ask(
        layout=Layout(
            tensor=_count(given, "tensor-parallel-size") or 1,
            pipeline=_count(given, "pipeline-parallel-size") or 1,
            data=_count(given, "data-parallel-size") or 1,
            expert_parallel="enable-expert-parallel" in given,
        ),
        utilization=_number(given, "gpu-memory-utilization"),
        max_model_len=_length(given),
        kv_cache_dtype=given.get("kv-cache-dtype") or "auto",
        quantization=given.get("quantization"),
        dtype=_one_of(given, "dtype", DTYPES),
        kv_cache_memory=kv_memory,
        block_size=_block(given) or (_CPU_BLOCK if on_cpu else None),
        batched_tokens=_count(given, "max-num-batched-tokens"),
        sequences=_count(given, "max-num-seqs"),
        eager="enforce-eager" in given,
        keeps_all="disable-hybrid-kv-cache-manager" in given,
        prefix_caching=_switch(given, "enable-prefix-caching"),
        allows_long=env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").lower() in {"1", "true"},
        context=_count(given, "context"),
        output=_count(given, "output"),
        version=_version(given),
    )


def size(name: str, text: str) -> int:
    """Return a size in bytes: a number, with kB MB GB KiB MiB GiB, or with vLLM's own k m g K M G.

    Raises BadInputError for what is none, or none that a GPU could have.
    """
    stripped = text.strip()
    unit = _SIZE.fullmatch(stripped)
    human = _HUMAN.fullmatch(stripped)
    if unit is not None:
        base = 1024 if unit[3] else 1000
        found = float(unit[1]) * base ** _POWERS[unit[2].lower()]
    elif human is not None:
        found = float(human[1]) * _FACTORS.get(human[2], 1)
    else:
        raise BadInputError(name, f"{text!r} is not a size", "write one such as 15GiB or 16106127360")
    if not 0 < found < 1 << 50:
        raise BadInputError(name, f"{text!r} is no size of a memory", "write one such as 15GiB or 16106127360")
    return int(found)


def _one_of(given: Flags, name: str, known: Sequence[str]) -> str:
    text = given.get(name, "auto")
    if text not in known:
        raise BadInputError(f"--{name} {text:.40}", "vLLM does not know it", f"use one of {', '.join(known)}")
    return text


def _block(given: Flags) -> int | None:
    found = _count(given, "block-size")
    if found is not None and found not in _SMALL_BLOCKS and found % _BLOCK_STEP:
        why = "no attention kernel of vLLM has blocks of so many tokens"
        raise BadInputError(f"--block-size {found}", why, f"use a multiple of {_BLOCK_STEP}")
    return found


def _version(given: Flags) -> Version | None:
    text = given.get("vllm-version")
    if text is None:
        return None
    found = version(text.removeprefix("v"))
    if not found:
        raise BadInputError("--vllm-version", f"{text!r} is no version", "write one such as 0.32.0")
    return found


def _length(given: Flags) -> int | None:
    return -1 if given.get("max-model-len") in ("-1", "auto") else _count(given, "max-model-len")


def _count(given: Flags, name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    found = _HUMAN.fullmatch(text.strip())
    count = float(found[1]) * _FACTORS.get(found[2], 1) if found else 0.0
    if not 0 < count < GIB or count != int(count):
        raise BadInputError(
            f"--{name}", f"{text!r} is not a number above 0", "write a whole number, or one such as 32k"
        )
    return int(count)


def _number(given: Flags, name: str) -> float | None:
    text = given.get(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise BadInputError(f"--{name}", f"{text!r} is not a number", "write one such as 0.90") from None


def _switch(given: Flags, name: str) -> bool | None:
    if f"no-{name}" in given:
        return False
    return True if name in given else None
