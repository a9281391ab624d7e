"""The model as it lies on this host: a folder, or a snapshot in Hugging Face's cache. Nothing is asked of the Hub."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vllm_supervisor.adapters.host import files
from vllm_supervisor.adapters.host.wanted import Flags
from vllm_supervisor.config.paths import expand_home
from vllm_supervisor.config.regular import open_regular
from vllm_supervisor.domain.doctor.facts import Model, ModelConfig, Unknown

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_MAX_CONFIG = 4 << 20
_REMOTE = ("s3://", "gs://", "az://", "http://", "https://")


def model(name: str, given: Flags, env: Mapping[str, str], cwd: Path) -> Model | Unknown:
    """Return what is here of the model called `name`, at its `--revision`."""
    if name.startswith(_REMOTE):
        return Unknown(f"{name} is in an object store, which is not asked")
    if env.get("VLLM_USE_MODELSCOPE", "").lower() in {"1", "true"}:
        return Unknown("the model comes from ModelScope, whose cache is not looked at")
    cache = hub_cache(given, env)
    folder = cwd / (expand_home(name, env) or name)
    if files.exists(folder) or name.startswith(("/", ".", "~")):
        return _described(folder, local=True, token=False, cache=cache)
    token = bool(given.get("hf-token")) or _token(env)
    return _described(snapshot(cache, name, given.get("revision") or "main"), local=False, token=token, cache=cache)


def hub_cache(given: Flags, env: Mapping[str, str]) -> Path:
    """Return the folder that models of the Hub are downloaded to (huggingface_hub/constants.py, vLLM's flag first)."""
    for chosen in (given.get("download-dir"), env.get("HF_HUB_CACHE"), env.get("HUGGINGFACE_HUB_CACHE")):
        if chosen:
            return Path(expand_home(chosen, env) or chosen)
    return _hf_home(env) / "hub"


def _hf_home(env: Mapping[str, str]) -> Path:
    given = env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(expand_home(given, env) or given)


def _token(env: Mapping[str, str]) -> bool:
    if env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    path = env.get("HF_TOKEN_PATH") or str(_hf_home(env) / "token")
    try:
        return Path(expand_home(path, env) or path).stat().st_size > 0
    except OSError:
        return False


def snapshot(cache: Path, name: str, revision: str) -> Path | None:
    """Return the folder of a model in the cache, at a branch, tag or commit; None where it is not there."""
    repository = cache / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        commit = revision
    folder = repository / "snapshots" / commit
    return folder if files.exists(folder) else None


def _described(folder: Path | None, *, local: bool, token: bool, cache: Path) -> Model:
    free = files.free(cache)
    if folder is None or not files.exists(folder):
        return Model(local=local, token=token, cache=str(cache), free=free)
    if folder.is_file():  # a GGUF file is a model by itself
        return Model(local, str(folder), complete=True, bytes=_size([folder]), cache=str(cache), free=free)
    weights = _weights(folder)
    config = _config(folder)
    return Model(
        local=local,
        path=str(folder),
        complete=bool(weights) and all(map(files.exists, weights)) and _has_config(folder),
        bytes=_size(weights),
        config=config,
        token=token,
        cache=str(cache),
        free=free,
    )


def _has_config(folder: Path) -> bool:
    return any(files.exists(folder / name) for name in ("config.json", "params.json")) or any(folder.glob("*.gguf"))


def _weights(folder: Path) -> list[Path]:
    """Return the files of the weights: those that an index names, there or not; else those that are there."""
    for name in _INDEXES:
        names = _json(folder / name).get("weight_map")
        if isinstance(names, dict):
            return [folder / str(file) for file in sorted(set(names.values()))]
    return [file for file in sorted(folder.glob("*")) if file.suffix in _WEIGHTS]


def _size(weights: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in weights if files.exists(file))


def _config(folder: Path) -> ModelConfig | Unknown:
    data = _json(folder / "config.json")
    if not data:
        return Unknown("there is no config.json that can be read")
    text = data.get("text_config") if isinstance(data.get("text_config"), dict) else {}
    both: dict[str, Any] = {**data, **(text or {})}
    heads = both.get("num_attention_heads", both.get("n_head"))
    quantization = data.get("quantization_config") or both.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return ModelConfig(
        heads=heads if isinstance(heads, int) and heads > 0 else None,
        quantization=str(method) if method else None,
    )


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one for whatever else is there."""
    try:
        with open_regular(path) as file:
            data = json.loads(file.read(_MAX_CONFIG))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
