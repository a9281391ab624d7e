"""What a configuration asks of the host: vLLM's flags, and the variables that vLLM reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_supervisor.config import vllm_args, yamlfile
from vllm_supervisor.config.engine import VllmSettings
from vllm_supervisor.domain.doctor.facts import Wanted

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
"""What huggingface_hub takes for true."""

Flags = Mapping[str, str]
"""Name, without its dashes -> first value."""


def flags(vllm: VllmSettings) -> Flags:
    """Return vLLM's flags as they hold, in all their spellings, those of a `--config` file included."""
    base = Path(vllm.cwd or ".")
    found = vllm_args.effective(vllm.extra_args, lambda name: yamlfile.read(base / name))
    return {name: flag.first for name, flag in found.items()}


def wanted(vllm: VllmSettings, given: Flags, env: Mapping[str, str]) -> Wanted:
    """Return what is asked for. A number that vLLM could not read either counts as not given."""
    return Wanted(
        model=vllm.model,
        host=vllm.host,
        port=vllm.port,
        has_key=bool(env.get("VLLM_API_KEY")),
        tensor=_count(given, "tensor-parallel-size"),
        pipeline=_count(given, "pipeline-parallel-size"),
        data=_local_data(given),
        nodes=_count(given, "nnodes"),
        executor=given.get("distributed-executor-backend"),
        utilization=_number(given.get("gpu-memory-utilization")),
        quantization=given.get("quantization"),
        kv_cache_dtype=given.get("kv-cache-dtype"),
        dtype=given.get("dtype"),
        revision=given.get("revision"),
        offline=any(env.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
        visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
        vllm_port=env.get("VLLM_PORT"),
        use_v1=env.get("VLLM_USE_V1"),
    )


def utilization(command: Sequence[str]) -> float | None:
    """Return the `--gpu-memory-utilization` in a command line of vLLM; its `--config` file is not read."""
    last = {flag.name: flag.first for flag in vllm_args.flags(command)}
    return _number(last.get("gpu-memory-utilization"))


def _local_data(given: Flags) -> int:
    """Return the data-parallel engines on this host."""
    local = given.get("data-parallel-size-local")
    return int(local) if local and local.isdigit() else _count(given, "data-parallel-size")


def _count(given: Flags, name: str) -> int:
    text = given.get(name, "")
    return int(text) if text.isdigit() and int(text) > 0 else 1


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
