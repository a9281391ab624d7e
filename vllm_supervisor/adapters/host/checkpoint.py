"""A model's files, read for what they weigh: its configuration, and the headers of its tensors. Nothing else of them.

Raises BadInputError, one line each, for whatever cannot be read; files may come from anywhere, and may be broken.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_supervisor.adapters.host import files, gguf, safetensors
from vllm_supervisor.adapters.host.model import hub_cache, snapshot
from vllm_supervisor.adapters.host.wanted import Flags
from vllm_supervisor.config.paths import expand_home
from vllm_supervisor.config.regular import open_regular
from vllm_supervisor.errors import BadInputError

_MAX_JSON = 64 << 20
"""An index of 100,000 tensors is 10 MB."""
_INDEX = "model.safetensors.index.json"
_MOST_BYTES = 1 << 50
_AGAIN = "download the file again"
_DRAFT = re.compile(r"(?:^|\.)mtp\.|^(?:\w+\.){0,3}layers\.(\d+)\.")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.")
_ADAPTER = "adapter_model.safetensors"
_BASE = "name the model that it was trained on"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it lies on this host: its configuration, and the bytes of its tensors where they are here.

    `draft` are those of layers that are not loaded (they predict further tokens); `weights` do not count them.
    `source` says where the figure comes from.
    """

    config: Mapping[str, Any]
    where: str
    weights: int | None = None
    draft: int = 0
    source: str = "the configuration"


def checkpoint(name: str, given: Flags, env: Mapping[str, str], cwd: Path) -> Checkpoint:
    """Return what `name` is: a folder, a `config.json`, a GGUF file, or a model in Hugging Face's cache."""
    path = cwd / (expand_home(name, env) or name)
    if files.exists(path):
        return _folder(path) if path.is_dir() else _file(path)
    if name.startswith(("/", ".", "~")) or name.endswith((".json", ".gguf")):
        raise BadInputError(str(path), "there is no such file or folder", "name a model's folder, or its config.json")
    found = snapshot(hub_cache(given, env), name, given.get("revision") or "main")
    if found is None:
        why = f"it is neither a folder nor in the cache {hub_cache(given, env)}"
        raise BadInputError(name, why, f"run `hf download {name} config.json`, or name a folder or a config.json")
    return _folder(found)


def _file(path: Path) -> Checkpoint:
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.suffix != ".json":
        raise BadInputError(str(path), "it is neither a config.json nor a GGUF file", "name the model's folder")
    return Checkpoint(_json(path), str(path))


def _folder(folder: Path) -> Checkpoint:
    path = folder / "config.json"
    if not files.exists(path):
        lone = sorted(folder.glob("*.gguf"))
        if lone:
            return _gguf(lone[0])
        if files.exists(folder / _ADAPTER) or files.exists(folder / "adapter_config.json"):
            raise BadInputError(str(folder), "it holds a LoRA adapter, not a model", _BASE)
        raise BadInputError(str(folder), "there is no config.json in it", "name the folder of a model")
    config = _with_modelopt(_json(path), folder)
    weights, draft, source = _weights(folder, _layers(config))
    return Checkpoint(config, str(path), weights, draft, source)


def _with_modelopt(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Add what ModelOpt writes beside the configuration."""
    beside = folder / "hf_quant_config.json"
    if "quantization_config" in config or not files.exists(beside):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **_json(beside)}}


def _weights(folder: Path, layers: int) -> tuple[int | None, int, str]:
    """Return the bytes of the tensors, those that are not loaded, and where that was read."""
    index = folder / _INDEX
    total = None
    shards = sorted(folder.glob("*.safetensors"))
    shards = [shard for shard in shards if not shard.name.startswith("consolidated")] or shards
    if [shard.name for shard in shards] == [_ADAPTER]:
        raise BadInputError(str(shards[0]), "it is a LoRA adapter, not a model", _BASE)
    shards = [shard for shard in shards if shard.name != _ADAPTER]
    if files.exists(index):
        total, shards = _indexed(index)
    else:
        _complete(shards)
    if shards and all(map(files.exists, shards)):
        sizes = [_tensors(shard, layers) for shard in shards]
        loaded, draft = sum(size for size, _ in sizes), sum(draft for _, draft in sizes)
        return loaded or None, draft, "the headers of its safetensors"
    if total is not None:
        return total, 0, f"{_INDEX}"
    others = [file for kind in ("*.bin", "*.pt", "*.gguf") for file in folder.glob(kind) if files.is_file(file)]
    if others:
        return sum(file.stat().st_size for file in others), 0, "the sizes of its files"
    return None, 0, "the configuration"


def _indexed(index: Path) -> tuple[int | None, list[Path]]:
    """Return the total that an index states, and the shards that it names, whether or not they are here."""
    data = _json(index)
    metadata, named = data.get("metadata"), data.get("weight_map")
    if not isinstance(named, dict) or not named:
        raise BadInputError(str(index), "its weight_map names no tensor", _AGAIN)
    odd = next((file for file in named.values() if not isinstance(file, str) or Path(file).name != file), None)
    if odd is not None:
        raise BadInputError(str(index), f"its weight_map names {str(odd)[:80]!r}, which is no file beside it", _AGAIN)
    given = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = int(given) if isinstance(given, int | float) and 0 < given < _MOST_BYTES else None
    return total, [index.parent / name for name in sorted(set(named.values()))]


def _complete(shards: list[Path]) -> None:
    """Raise BadInputError where some of the parts are not here that the others are counted among."""
    lost = next((shard for shard in shards if not files.exists(shard)), None)
    if lost is not None:  # in the cache of the Hub, files are links to what was downloaded
        raise BadInputError(str(lost), "it is a link that leads nowhere", _AGAIN)
    here: dict[int, set[int]] = {}
    for shard in shards:
        if found := _PART.search(shard.name):
            here.setdefault(int(found[2]), set()).add(int(found[1]))
    for count, parts in here.items():
        if (missing := count - len(parts)) > 0:
            why = f"{missing} of {count} parts are missing ({shards[0].name} is here)"
            raise BadInputError(str(shards[0].parent), why, "download the rest")


def _tensors(shard: Path, layers: int) -> tuple[int, int]:
    """Return the bytes of the tensors in a safetensors file: of those that are loaded, and of the others."""
    sizes = {True: 0, False: 0}
    for name, size in safetensors.tensors(shard).items():
        found = _DRAFT.search(name)
        later = found is not None and (found[1] is None or (0 < layers <= int(found[1])))
        sizes[later] += size
    return sizes[False], sizes[True]


def _gguf(path: Path) -> Checkpoint:
    parts = sorted(path.parent.glob(re.sub(r"-\d{5}-of-", "-?????-of-", path.name))) or [path]
    _complete(parts)
    headers = [gguf.read(part) for part in parts]
    size = sum(part.stat().st_size for part in parts) - sum(header.begins for header in headers)
    tensors = {name: elements for header in headers for name, elements in header.tensors.items()}
    header = replace(headers[0], tensors=tensors)
    return Checkpoint(gguf.config(header, size, str(path)), str(path), size, 0, "the GGUF file")


def _layers(config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    return found if isinstance(found, int) else 0


def _json(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            text = file.read(_MAX_JSON + 1)
        if len(text) > _MAX_JSON:
            raise BadInputError(str(path), f"it has more than {_MAX_JSON} bytes", "name a model's own config.json")
        data = json.loads(text)
    except OSError as error:
        raise BadInputError(str(path), (error.strerror or str(error)).lower(), "make it readable") from None
    except (ValueError, RecursionError):
        raise BadInputError(str(path), "it is not valid JSON", _AGAIN) from None
    if not isinstance(data, dict):
        raise BadInputError(str(path), "it is not a JSON object", "name a model's own config.json")
    return data
