"""Models on disk: folders, caches, bare configurations, GGUF; and files that are broken in every way."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.test_host_model import cached
from tests.domain.capacity.models import DEEPSEEK_V3, LLAMA_3_8B
from vllm_supervisor.adapters.host.checkpoint import Checkpoint, checkpoint
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.errors import BadInputError


def look(name: str | Path, tmp_path: Path) -> Checkpoint:
    """What `name` is, at home in `tmp_path`."""
    return checkpoint(str(name), {}, {"HOME": str(tmp_path)}, tmp_path)


def folder(path: Path, config: dict[str, Any] = LLAMA_3_8B) -> Path:
    """A folder with a configuration."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def tensors(path: Path, sizes: dict[str, int], *, cut: int = 0) -> Path:
    """A safetensors file whose tensors have these many bytes, all of them zero; `cut` bytes short."""
    header, at = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(at)
    path.write_bytes(whole[: len(whole) - cut])
    return path


def test_headers_tell_what_the_tensors_weigh(tmp_path: Path) -> None:
    """All shards are added up; what predicts further tokens is told apart, by its name or by its layer's number."""
    model = folder(tmp_path / "m", DEEPSEEK_V3)
    tensors(model / "a.safetensors", {"model.layers.60.x": 100, "model.layers.61.x": 7, "lm_head.weight": 10})
    tensors(model / "b.safetensors", {"mtp.fc.weight": 5, "model.embed.weight": 1})
    tensors(model / "consolidated.safetensors", {"again": 500})
    found = look("m", tmp_path)
    assert (found.weights, found.draft) == (111, 12)
    assert found.source == "the headers of its safetensors"


def test_an_index_stands_for_shards_that_are_not_here(tmp_path: Path) -> None:
    """With the configuration and the index alone, the total is known."""
    model = folder(tmp_path / "m")
    index = {"metadata": {"total_size": 16_060_522_496}, "weight_map": {"x": "model-00001-of-00004.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    found = look("m", tmp_path)
    assert (found.weights, found.source) == (16_060_522_496, "model.safetensors.index.json")


def test_a_configuration_alone_is_enough(tmp_path: Path) -> None:
    """Bare, or in a folder without weights; the parameters are then counted."""
    folder(tmp_path / "m")
    assert look("m/config.json", tmp_path).weights is None
    assert look("m", tmp_path).weights is None
    assert look(tmp_path / "m", tmp_path).config == LLAMA_3_8B


def test_files_of_another_kind_count_as_they_are(tmp_path: Path) -> None:
    """PyTorch's own format has no header that could be read without running it."""
    (folder(tmp_path / "m") / "pytorch_model.bin").write_bytes(bytes(1000))
    assert look("m", tmp_path).weights == 1000


def test_the_cache_of_the_hub(tmp_path: Path) -> None:
    """By its name on the Hub; one that is not there says how to get it."""
    cached(tmp_path / ".cache/huggingface/hub", {"config.json": json.dumps(LLAMA_3_8B)})
    assert look("o/m", tmp_path).config == LLAMA_3_8B
    with pytest.raises(BadInputError, match=r"o/other: it is neither a folder nor in the cache .*; run `hf download"):
        look("o/other", tmp_path)


def test_what_modelopt_writes_beside_it(tmp_path: Path) -> None:
    """NVFP4, and an FP8 cache, from hf_quant_config.json."""
    model = folder(tmp_path / "m")
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (model / "hf_quant_config.json").write_text(json.dumps(told))
    found = precision(look("m", tmp_path).config)
    assert (found.method, found.kv_dtype) == ("modelopt_fp4", "fp8")


def gguf_text(text: str) -> bytes:
    """A text as GGUF writes it."""
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_file(path: Path) -> Path:
    """A small Qwen3 in GGUF: metadata, two tensors, and 1000 bytes of data."""
    numbers = {
        "qwen3.block_count": 2,
        "qwen3.embedding_length": 64,
        "qwen3.feed_forward_length": 128,
        "qwen3.context_length": 4096,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 32,
        "qwen3.attention.value_length": 32,
    }
    entries = [gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("qwen3")]
    entries += [gguf_text(key) + struct.pack("<II", 4, value) for key, value in numbers.items()]
    words = b"".join(gguf_text(word) for word in ("a", "bc", "def"))
    entries.append(gguf_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + words)
    entries.append(gguf_text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 3) + struct.pack("<3f", 0, 1, 2))
    listed = [
        gguf_text(name) + struct.pack("<IQQIQ", 2, 64, 3, 0, 0) for name in ("token_embd.weight", "output.weight")
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(entries))
    path.write_bytes(header + b"".join(entries) + b"".join(listed) + bytes(1000))
    return path


def test_a_gguf_file_tells_its_architecture(tmp_path: Path) -> None:
    """The metadata are those of a config.json by other names; the weights are what is behind the header."""
    found = look(gguf_file(tmp_path / "m.gguf"), tmp_path)
    architecture = read(found.config)
    assert found.weights == 1000
    assert (architecture.family, architecture.layers, architecture.vocabulary, architecture.max_len) == (
        "qwen3",
        2,
        3,
        4096,
    )
    cache = architecture.caches[0]
    assert (cache.heads, cache.k_size, cache.v_size) == (2, 32, 32)
    assert precision(found.config).method == "gguf"
    (tmp_path / "d").mkdir()
    gguf_file(tmp_path / "d/m.gguf")
    assert look("d", tmp_path).config["num_hidden_layers"] == 2


@pytest.mark.parametrize("length", [3, 10, 30, 80, 200, 400])
def test_a_gguf_file_that_is_cut_off(tmp_path: Path, length: int) -> None:
    """Wherever it ends."""
    whole = gguf_file(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:length])
    with pytest.raises(BadInputError, match=r"m.gguf: it(s header is cut off or broken|  ?is no GGUF file)"):
        look("m.gguf", tmp_path)


def gguf_of(*entries: bytes, tensors: tuple[bytes, ...] = (), named: int | None = None) -> bytes:
    """A GGUF file of these entries and tensors; `named` is how many of the former its header says there are."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries) if named is None else named)
    return head + b"".join(entries) + b"".join(tensors) + bytes(100)


def gguf_entry(key: str, kind: int, value: bytes) -> bytes:
    return gguf_text(key) + struct.pack("<I", kind) + value


NAMED = gguf_entry("general.architecture", 8, gguf_text("deepseek2"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gguf_of(NAMED, named=1 << 40), "its header is cut off or broken"),
        (gguf_of(gguf_entry("x", 9, struct.pack("<IQ", 9, 1))), "its header is cut off or broken"),
        (gguf_of(gguf_entry("x", 77, b"")), "its header is cut off or broken"),
        (gguf_of(tensors=(gguf_text("t") + struct.pack("<I", 9),)), "its header is cut off or broken"),
        (gguf_of(struct.pack("<Q", 1 << 20)), "its header is cut off or broken"),
        (gguf_of(gguf_entry("x", 4, bytes(4))), "it does not name its architecture"),
        (
            gguf_of(NAMED, tensors=(gguf_text("t") + struct.pack("<IQIQ", 1, 5, 0, 1000),)),
            "at least 900 bytes are missing at its end",
        ),
    ],
    ids=[
        "too many entries",
        "lists in lists",
        "unknown kind",
        "dimensions",
        "a text beyond the end",
        "no name",
        "no data",
    ],
)
def test_a_gguf_file_that_makes_no_sense(tmp_path: Path, content: bytes, words: str) -> None:
    """One line, in bounded time and memory, whatever it holds."""
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(BadInputError, match=f"m.gguf: {words}"):
        look("m.gguf", tmp_path)


def test_a_gguf_file_with_latent_attention_and_numbers_for_each_layer(tmp_path: Path) -> None:
    """DeepSeek's key lengths are those of the latent; a list that repeats a number is that number."""
    numbers = {
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "rope.dimension_count": 64,
    }
    entries = [gguf_entry(f"deepseek2.{key}", 4, struct.pack("<I", value)) for key, value in numbers.items()]
    entries += [
        gguf_entry("deepseek2.attention.head_count", 9, struct.pack("<IQ3I", 4, 3, 16, 16, 16)),
        gguf_entry("deepseek2.feed_forward_length", 9, struct.pack("<IQ3I", 4, 3, 1, 2, 3)),
    ]
    (tmp_path / "m.gguf").write_bytes(gguf_of(NAMED, *entries))
    found = look("m.gguf", tmp_path).config
    told = ("model_type", "qk_nope_head_dim", "v_head_dim", "num_attention_heads", "tie_word_embeddings")
    assert [found[name] for name in told] == ["deepseek_v2", 128, 128, 16, True]
    assert "head_dim" not in found


def broken(tmp_path: Path, content: bytes) -> None:
    """A model with one shard of this content."""
    (folder(tmp_path / "m") / "model.safetensors").write_bytes(content)


def header(**tensors: object) -> bytes:
    """A safetensors file of four bytes of data, with this header."""
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


def one(begin: int, end: int, kind: object = "U8", shape: object = None) -> dict[str, object]:
    """A tensor in a header."""
    return {"dtype": kind, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header(a=one(0, 4), b=one(2, 4)), "its tensor 'b' overlaps another"),
        (header(a=one(0, 1), b=one(2, 4)), "its tensor 'b' does not begin where another ends"),
        (header(a=one(0, 2), b=one(2, 9)), "5 bytes are missing at its end"),
        (header(a=one(0, 4, "F3")), "its tensor 'a' is of the unknown type 'F3'"),
        (header(a=one(0, 4, None)), "its tensor 'a' is of the unknown type 'None'"),
        (header(a=one(0, 4, "F32", [2])), "its tensor 'a' has not the size of its shape"),
        (header(a=one(0, 4, "F32", "x")), "its tensor 'a' has not the size of its shape"),
    ],
    ids=["overlap", "hole", "outside", "type", "no type", "shape", "no shape"],
)
def test_tensors_that_make_no_sense(tmp_path: Path, content: bytes, words: str) -> None:
    """Offsets, types and shapes have to agree with one another and with the file."""
    broken(tmp_path, content)
    with pytest.raises(BadInputError) as error:
        look("m", tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/m/model.safetensors: {words}; download the file again")


def test_a_download_that_is_not_complete(tmp_path: Path) -> None:
    """Without an index, parts that are missing are told by the names of the others, in GGUF too."""
    model = folder(tmp_path / "m")
    tensors(model / "model-00002-of-00004.safetensors", {"a": 1})
    with pytest.raises(BadInputError, match=r"m: 3 of 4 parts are missing \(model-00002-of-0.*; download the rest"):
        look("m", tmp_path)
    (model / "model-00002-of-00004.safetensors").unlink()
    (model / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(BadInputError, match=r"m/model.safetensors: it is a link that leads nowhere; download the file"):
        look("m", tmp_path)
    gguf_file(tmp_path / "x-00001-of-00002.gguf")
    with pytest.raises(BadInputError, match="1 of 2 parts are missing"):
        look("x-00001-of-00002.gguf", tmp_path)
    gguf_file(tmp_path / "x-00002-of-00002.gguf")
    assert look("x-00001-of-00002.gguf", tmp_path).weights == 2000


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({}, "its weight_map names no tensor"),
        (None, "its weight_map names no tensor"),
        ({"a": "../b.safetensors"}, "its weight_map names '../b.safetensors', which is no file beside it"),
        ({"a": 3}, "its weight_map names '3', which is no file beside it"),
    ],
    ids=["empty", "none", "elsewhere", "number"],
)
def test_an_index_that_names_no_files(tmp_path: Path, named: object, words: str) -> None:
    """It is not taken for a model without weights."""
    (folder(tmp_path / "m") / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    with pytest.raises(BadInputError, match=words):
        look("m", tmp_path)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    """With a configuration beside it or without; beside a model's own tensors it does not count."""
    model = folder(tmp_path / "m")
    tensors(model / "adapter_model.safetensors", {"a": 7})
    with pytest.raises(BadInputError, match="it is a LoRA adapter, not a model; name the model that it was trained on"):
        look("m", tmp_path)
    tensors(model / "model.safetensors", {"a": 100})
    assert look("m", tmp_path).weights == 100
    for name in ("config.json", "model.safetensors"):
        (model / name).unlink()
    with pytest.raises(BadInputError, match="it holds a LoRA adapter, not a model"):
        look("m", tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is no safetensors file: it is cut off"),
        (b"\x10\0\0", "it is no safetensors file: it is cut off"),
        (struct.pack("<Q", 1000) + b'{"a": ', "its header ends after 6 of 1000 bytes"),
        (
            struct.pack("<Q", 1 << 60) + b"{}",
            "it is no safetensors file: its header would have 1152921504606846976 bytes",
        ),
        (struct.pack("<Q", 5) + b"[1,2]", "its header is no JSON object"),
        (struct.pack("<Q", 5) + b"hello", "its header is no JSON"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "its header has no data_offsets for 'a'"),
        (struct.pack("<Q", 31) + b'{"a": {"data_offsets":[0,100]}}', "100 bytes are missing at its end"),
        (struct.pack("<Q", 29) + b'{"a": {"data_offsets":[9,1]}}', "its header has no sense in data_offsets for 'a'"),
    ],
    ids=["empty", "short", "cut off", "huge", "list", "text", "no offsets", "data missing", "backwards"],
)
def test_a_broken_header_is_one_clear_line(tmp_path: Path, content: bytes, words: str) -> None:
    """It names the file, what is wrong, and that it should be downloaded again."""
    broken(tmp_path, content)
    with pytest.raises(BadInputError) as error:
        look("m", tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/m/model.safetensors: {words}")
    assert str(error.value).endswith("; download the file again")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m/config.json", "{", "it is not valid JSON"),
        ("m/config.json", "[]", "it is not a JSON object"),
        ("m/config.json", "[" * 100000, "it is not valid JSON"),
        ("m/other.txt", "x", "it is neither a config.json nor a GGUF file"),
    ],
    ids=["cut off", "list", "deep", "another file"],
)
def test_a_broken_configuration_is_one_clear_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    """Whatever the file holds."""
    (tmp_path / "m").mkdir()
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInputError, match=words):
        look(name, tmp_path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json", "x.gguf"])
@pytest.mark.parametrize(("kind", "said"), [("fifo", "fifo"), ("device", "character device")])
def test_only_regular_files_are_opened(tmp_path: Path, name: str, kind: str, said: str) -> None:
    """To open a FIFO would wait for ever, and a device never ends."""
    model = folder(tmp_path / "m")
    path = model / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BadInputError, match=f"{name}: it is a {said}, not a regular file; "):
        look(path if name == "x.gguf" else "m", tmp_path)


@pytest.mark.parametrize("name", ["/nowhere/m", "./m", "~/m", "config.json", "x.gguf"])
def test_a_path_that_leads_nowhere(tmp_path: Path, name: str) -> None:
    """It is not taken for a name on the Hub."""
    with pytest.raises(BadInputError, match="there is no such file or folder"):
        look(name, tmp_path)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    """It says what is missing."""
    (tmp_path / "m").mkdir()
    with pytest.raises(BadInputError, match=r"m: there is no config\.json in it; name the folder of a model"):
        look("m", tmp_path)
