"""Where a start stands, from the log lines of every era."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.startup.logs import ERAS, V011, V032, V08, WRAPPED, Era
from vllm_supervisor.domain.startup import StartPhase, StartReader, StartupFigures


def read(*lines: str) -> StartReader:
    reader = StartReader()
    for line in lines:
        reader.feed(line)
    return reader


@pytest.mark.parametrize("era", ERAS.values(), ids=list(ERAS))
def test_each_line_leads_to_its_phase(era: Era) -> None:
    """In the wording and format of each era, line by line."""
    reader = StartReader()
    assert reader.phase is StartPhase.LAUNCHING
    for line, phase in era:
        reader.feed(line)
        assert reader.phase is phase, line


@pytest.mark.parametrize("wrapping", WRAPPED.values(), ids=list(WRAPPED))
@pytest.mark.parametrize("era", [V08, V011, V032], ids=["0.8", "0.11", "0.32"])
def test_collectors_wrap_lines(era: Era, wrapping: str) -> None:
    """A launcher that adds a stamp or a name to each line changes nothing."""
    reader = StartReader()
    for line, phase in era:
        reader.feed(wrapping.format(line))
        assert reader.phase is phase, line


def test_a_bar_drawn_in_place_is_read_to_its_latest() -> None:
    """tqdm separates its updates by carriage returns; several may come at once."""
    bar = "Loading safetensors checkpoint shards: {:3d}% Completed | {}/8 [00:01<00:01,  1.61it/s]"
    reader = read("\r" + "\r".join(bar.format(done * 100 // 8, done) for done in range(6)))
    assert (reader.progress.ratio, reader.progress.detail) == (5 / 8, "5 of 8 shards")
    reader.feed(bar.format(0, 0))
    assert reader.progress.ratio == 5 / 8, "a drafter's bar begins at 0 again; progress does not"


def test_two_captures_are_one_progress() -> None:
    """Graphs are captured in two rounds: the first fills one half, so that the second does not go back."""
    first = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 67/67 [00:05<00:00, 11.74it/s]"
    second = "Capturing CUDA graphs (decode, FULL):  {}%|#   | {}/67 [00:04<00:00, 14.00it/s]"
    reader = read(first)
    assert reader.progress.ratio == 0.5
    reader.feed(second.format(0, 0))
    assert (reader.progress.ratio, reader.progress.detail) == (0.5, "pass 2 of 2, 0 of 67 graphs")
    reader.feed(second.format(100, 67))
    assert reader.progress.ratio == 1.0


def test_a_phase_never_goes_back() -> None:
    """A worker that lags behind, or a line of an earlier phase, does not take the start back."""
    reader = read("Graph capturing finished in 9 secs, took 0.61 GiB", *(line for line, _ in V032[:5]))
    assert reader.phase is StartPhase.CAPTURING_GRAPHS
    assert reader.progress.ratio is None, "a bar of shards says nothing about graphs"


def test_an_announcement_is_not_yet_loading() -> None:
    """`Starting to load model` comes before a download that nothing tells of."""
    reader = read("INFO 11-29 19:34:10 [gpu_model_runner.py:5040] Starting to load model org/m...")
    assert (reader.phase, reader.load_announced) == (StartPhase.CONFIGURING, True)


def test_the_daemons_own_mark_is_not_the_engines_first_line() -> None:
    """What the daemon writes into the log does not end `launching`, and is no sign of life."""
    reader = StartReader()
    assert not reader.feed("[vllm-supervisor] generation 3 is launched at 2026-11-29T22:26:37Z")
    assert reader.phase is StartPhase.LAUNCHING


@pytest.mark.parametrize(
    ("era", "figures"),
    [
        (V08, StartupFigures("0.8.5", 7.5, 312.5, 10.125, 29.5, None, 162704, 10.17, 16000, 25.0, 0.5, 69.5)),
        (V032, StartupFigures("0.32.0", None, None, 0.31, 20.0, None, 131072, 128.0, 1024, None, None, 26.1)),
    ],
    ids=["0.8", "0.32"],
)
def test_figures(era: Era, figures: StartupFigures) -> None:
    """What vLLM prints about itself is kept, whatever the wording."""
    assert read(*(line for line, _ in era)).figures == figures


def test_of_several_workers_the_least_decides() -> None:
    """The largest weights, the smallest room."""
    reader = read(
        "(Worker_TP0 pid=3) Model loading took 15.0 GiB memory and 8.0 seconds",
        "(Worker_TP1 pid=4) Model loading took 14.5 GiB memory and 9.0 seconds",
        "(Worker_TP0 pid=3) Available KV cache memory: 11.00 GiB",
        "(Worker_TP1 pid=4) Available KV cache memory: 10.50 GiB",
        "GPU KV cache size: 162,704 tokens",
        "GPU KV cache size: 160,000 tokens",
    )
    figures = reader.figures
    assert (figures.weights_gib, figures.load_s, figures.kv_cache_gib, figures.kv_cache_tokens) == (15, 9, 10.5, 160000)


@given(st.lists(st.binary(max_size=300).map(lambda raw: raw.decode(errors="replace")) | st.text(max_size=100)))
def test_any_bytes_will_do(lines: list[str]) -> None:
    """Nothing raises, phases go forward only, and ratios stay within 0 and 1."""
    reader, before = StartReader(), StartPhase.LAUNCHING
    for line in lines:
        reader.feed(line)
        assert reader.phase.rank >= before.rank
        assert reader.progress.ratio is None or 0 <= reader.progress.ratio <= 1
        before = reader.phase


def _corpus() -> list[Path]:
    folder = os.environ.get("VLLM_FACTS")
    return sorted(Path(folder, "log-corpus").glob("*.log")) if folder else []


@pytest.mark.skipif(not _corpus(), reason="VLLM_FACTS names no folder with a log-corpus")
def test_the_corpus_of_real_logs() -> None:
    """Real logs give a version where they show a banner; healthy ones pass through every phase that they show."""
    for path in _corpus():
        text = path.read_text(errors="replace")
        reader = read(*text.split("\n"))
        assert reader.phase is not StartPhase.LAUNCHING, path.name
        if "server version " in text:
            assert reader.figures.vllm_version, path.name
    expected = [json.loads(line) for line in (_corpus()[0].parent / "expected.jsonl").read_text().splitlines()]
    healthy = [e["file"] for e in expected if "benign-healthy" in e["file"]]
    for name in healthy:
        lines = (_corpus()[0].parent / name).read_text(errors="replace").split("\n")
        reader, passed = StartReader(), []
        for line in lines:
            reader.feed(line)
            passed += [reader.phase] if reader.phase not in passed else []
        assert passed[0] is StartPhase.CONFIGURING
        assert {StartPhase.CAPTURING_GRAPHS, StartPhase.WARMING_UP} <= set(passed), name
        assert passed == sorted(passed, key=lambda phase: phase.rank)


def test_the_latest_download_counts() -> None:
    """Of weights and of a drafter: the figure of the last one that ended."""
    lines = [f"INFO 01-01 00:00:00 [x.py:1] Time spent downloading weights for m: {at} seconds" for at in (90.5, 1.5)]
    assert read(*lines).figures.download_s == 1.5


def test_a_capture_in_one_round_is_the_whole() -> None:
    """Versions before the two rounds name neither."""
    reader = read("Capturing CUDA graph shapes:  50%|#   | 10/20 [00:04<00:00, 14.00it/s]")
    assert (reader.progress.ratio, reader.progress.detail) == (0.5, "10 of 20 graphs")
