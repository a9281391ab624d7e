"""Weights that come into the Hugging Face cache, as huggingface_hub lays them out; nothing in the log tells of it."""

import json
import os
from collections.abc import Callable, Mapping

from vllm_supervisor.simulator.knobs import Knobs

_COMMIT = "0" * 40
_STEPS = 50


def download(model: str, knobs: Knobs, environ: Mapping[str, str], wait: Callable[[float], None]) -> None:
    """Have `download_bytes` come within `download_seconds`, unless they are there. `wait` lets so many seconds pass."""
    home = environ.get("HF_HOME") or "."
    folder = os.path.join(home, "hub", f"models--{model.replace('/', '--')}")  # noqa: PTH118 - pathlib costs 5 ms
    snapshot, blob = f"{folder}/snapshots/{_COMMIT}", f"{folder}/blobs/abc"
    if os.path.exists(f"{snapshot}/model.safetensors"):  # noqa: PTH110 - as above
        return
    for made in (snapshot, f"{folder}/blobs", f"{folder}/refs"):
        os.makedirs(made, exist_ok=True)  # noqa: PTH103 - as above
    _write(f"{folder}/refs/main", _COMMIT)
    index = {"metadata": {"total_size": knobs.download_bytes}, "weight_map": {}}
    _write(f"{snapshot}/model.safetensors.index.json", json.dumps(index))
    with open(f"{blob}.incomplete", "wb") as file:  # noqa: PTH123 - as above
        for _ in range(_STEPS):
            file.write(b"\1" * (knobs.download_bytes // _STEPS))
            file.flush()
            wait(knobs.download_seconds / _STEPS)
    os.replace(f"{blob}.incomplete", blob)  # noqa: PTH105 - as above
    os.symlink("../../blobs/abc", f"{snapshot}/model.safetensors")  # noqa: PTH211 - as above


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - as above
        file.write(text)
