"""What starts measured, in a file: kept for each kind of start, and never in the way."""

import json
from pathlib import Path

import pytest

from vllm_supervisor.adapters.statefiles.measurements import FILE, MeasurementFile, read
from vllm_supervisor.domain.capacity.measured import MAX_KEPT, Key, Measured, gpu_key, measured
from vllm_supervisor.domain.startup import StartupFigures
from vllm_supervisor.ports import Note

KEY = Key("o/m", "digest", "0.32.0", "2 NVIDIA H100 80GB HBM3")
FIGURES = Measured(weights=15 << 30, kv_cache=50 << 30, tokens=409_600, concurrency=50.0, request_tokens=8192)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    """By model, arguments, GPUs and version; a later start like it replaces it."""
    notes: list[Note] = []
    file = MeasurementFile(tmp_path, notes.append)
    file.keep(KEY, Measured(weights=1))
    file.keep(KEY._replace(arguments="other"), Measured(weights=2))
    file.keep(KEY, FIGURES)
    memory = read(tmp_path)
    assert len(memory.starts) == 2
    assert memory.latest("o/m", "digest", KEY.gpu, "0.32.0+cpu") == (KEY, FIGURES)
    assert memory.latest("o/m", "digest", KEY.gpu) == (KEY, FIGURES)
    assert memory.latest("o/m", "digest", KEY.gpu, "0.33.0") is None
    assert memory.latest("o/m", "digest", "1 NVIDIA L4") is None
    assert memory.latest("o/m", "else", KEY.gpu) is None
    assert notes == []


def test_the_oldest_go(tmp_path: Path) -> None:
    """The file does not grow without end."""
    file = MeasurementFile(tmp_path, lambda _: None)
    for number in range(MAX_KEPT + 3):
        file.keep(KEY._replace(arguments=str(number)), FIGURES)
    starts = read(tmp_path).starts
    assert [starts[0][0].arguments, len(starts)] == ["3", MAX_KEPT]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"starts": 1}',
        json.dumps({"starts": [{"start": {"model": "m"}, "figures": {}}]}),
        json.dumps({"starts": [{"start": {**KEY._asdict(), "model": 1}, "figures": {}}]}),
        json.dumps({"starts": [{"start": KEY._asdict(), "figures": {"weights": -1}}]}),
        json.dumps({"starts": [{"start": KEY._asdict(), "figures": {"weights": "much"}}]}),
        json.dumps({"starts": [{"start": KEY._asdict(), "figures": {"sparkle": 1}}]}),
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: str) -> None:
    """And is written anew by the next start."""
    (tmp_path / FILE).write_text(content)
    assert read(tmp_path).starts == ()
    MeasurementFile(tmp_path, lambda _: None).keep(KEY, FIGURES)
    assert read(tmp_path).starts == ((KEY, FIGURES),)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    """Nothing fails for it."""
    notes: list[Note] = []
    MeasurementFile(tmp_path / "gone", notes.append).keep(KEY, FIGURES)
    assert [note.kind for note in notes] == ["measurements_not_written"]


def test_what_vllm_prints_becomes_bytes() -> None:
    """GiB as printed; what was not printed is not known, and nothing at all is of no use."""
    figures = StartupFigures(weights_gib=14.99, kv_cache_gib=50.5, kv_cache_tokens=413_696, graph_gib=0.5)
    found = measured(figures)
    assert (found.weights, found.kv_cache, found.graphs) == (int(14.99 * 2**30), int(50.5 * 2**30), 1 << 29)
    assert (found.tokens, found.concurrency, found.useful) == (413_696, None, True)
    assert not measured(StartupFigures()).useful


def test_cards_make_one_name() -> None:
    """Each kind with its number; none is a name as well."""
    assert gpu_key(("L4", "H100", "L4")) == "1 H100, 2 L4"
    assert gpu_key(()) == "none"
