"""Models: folders, Hugging Face's cache in all its states, tokens."""

import json
from pathlib import Path

import pytest

from vllm_supervisor.adapters.host.model import model
from vllm_supervisor.domain.doctor.facts import Model, ModelConfig, Unknown

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def look(name: str, tmp_path: Path, flags: dict[str, str] | None = None, **env: str) -> Model:
    """What is known of a model, at home in `tmp_path`."""
    found = model(name, flags or {}, {"HOME": str(tmp_path), **env}, tmp_path)
    assert isinstance(found, Model), found
    return found


def cached(cache: Path, files: dict[str, str], ref: str = "main") -> Path:
    """A snapshot in a cache, as huggingface_hub lays it out."""
    root = cache / "models--o--m"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / ref).write_text(COMMIT)
    folder = root / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (root / "blobs").mkdir()
    for name, text in files.items():
        (root / "blobs" / name).write_text(text)
        (folder / name).symlink_to(f"../../blobs/{name}")
    return folder


def test_a_folder(tmp_path: Path) -> None:
    """Heads and quantization are read, also below `text_config`; sizes are added up."""
    (tmp_path / "m").mkdir()
    config = {"text_config": {"num_attention_heads": 14}, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    assert not look("./m", tmp_path).complete
    (tmp_path / "m/model.safetensors").write_text("x" * 100)
    found = look("./m", tmp_path)
    assert (found.local, found.complete, found.bytes) == (True, True, 100)
    assert found.config == ModelConfig(14, "fp8")
    assert look("m", tmp_path).local
    assert look("~/m", tmp_path).path == str(tmp_path / "m")
    gone = look("/nowhere/m", tmp_path)
    assert (gone.local, gone.path, gone.complete) == (True, None, False)


def test_a_cached_model(tmp_path: Path) -> None:
    """Complete with all files that the index names; a shard that is missing makes it incomplete."""
    index = json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}})
    files = {"config.json": "{}", "model.safetensors.index.json": index, "1.safetensors": "xxx"}
    folder = cached(tmp_path / ".cache/huggingface/hub", files)
    found = look("o/m", tmp_path)
    assert (found.local, found.path, found.complete, found.bytes) == (False, str(folder), False, 3)
    (folder / "2.safetensors").write_text("yyyy")
    assert (look("o/m", tmp_path).complete, look("o/m", tmp_path).bytes) == (True, 7)
    assert look("o/m", tmp_path, {"revision": COMMIT}).complete
    assert look("o/m", tmp_path, {"revision": "other"}).path is None


@pytest.mark.parametrize(
    ("flags", "env", "folder"),
    [
        ({}, {}, ".cache/huggingface/hub"),
        ({}, {"XDG_CACHE_HOME": "{}/x"}, "x/huggingface/hub"),
        ({}, {"HF_HOME": "{}/h"}, "h/hub"),
        ({}, {"HF_HOME": "{}/h", "HF_HUB_CACHE": "{}/c"}, "c"),
        ({"download-dir": "{}/d"}, {"HF_HUB_CACHE": "{}/c"}, "d"),
    ],
)
def test_where_the_cache_is(tmp_path: Path, flags: dict[str, str], env: dict[str, str], folder: str) -> None:
    """As huggingface_hub decides it, vLLM's own flag first."""
    cached(tmp_path / folder, {"config.json": "{}", "model.safetensors": "x"})
    given = {name: text.format(tmp_path) for name, text in flags.items()}
    found = look("o/m", tmp_path, given, **{name: text.format(tmp_path) for name, text in env.items()})
    assert found.cache == str(tmp_path / folder)
    assert found.complete
    assert isinstance(found.free, int)


def test_tokens(tmp_path: Path) -> None:
    """A variable, a flag, the file of `hf auth login`."""
    assert not look("o/m", tmp_path).token
    assert look("o/m", tmp_path, HF_TOKEN="hf_x").token
    assert look("o/m", tmp_path, {"hf-token": "hf_x"}).token
    file = tmp_path / ".cache/huggingface/token"
    file.parent.mkdir(parents=True)
    file.touch()
    assert not look("o/m", tmp_path).token
    file.write_text("hf_x")
    assert look("o/m", tmp_path).token


def test_elsewhere(tmp_path: Path) -> None:
    """Object stores and ModelScope are not asked, and that is said."""
    assert isinstance(model("s3://bucket/m", {}, {}, tmp_path), Unknown)
    assert isinstance(model("o/m", {}, {"VLLM_USE_MODELSCOPE": "True"}, tmp_path), Unknown)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"num_attention_heads": "many"}', "[" * 100_000])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    """Whatever the file holds, the doctor goes on."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(text)
    config = look("./m", tmp_path).config
    assert isinstance(config, Unknown) or config.heads is None


def test_one_gguf_file(tmp_path: Path) -> None:
    """A file is a model by itself."""
    (tmp_path / "m.gguf").write_text("xx")
    found = look("./m.gguf", tmp_path)
    assert (found.complete, found.bytes) == (True, 2)
