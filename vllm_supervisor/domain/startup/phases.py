"""The phases of a start, and the lines of vLLM 0.6 to 0.33 that say which one has begun."""

import re
from dataclasses import dataclass
from enum import StrEnum


class StartPhase(StrEnum):
    """What an engine that starts is doing. They follow one another in this order; any may be left out."""

    LAUNCHING = "launching"
    """Nothing was printed yet: vLLM 0.32 imports for 13 s before its first line (measured, 2 cores)."""
    CONFIGURING = "configuring"
    DOWNLOADING = "downloading"
    LOADING_WEIGHTS = "loading_weights"
    COMPILING = "compiling"
    CAPTURING_GRAPHS = "capturing_graphs"
    WARMING_UP = "warming_up"
    """The engine proper is up; the API server, and the first token, are outstanding."""

    @property
    def rank(self) -> int:
        """The place in the order, from 0."""
        return ORDER.index(self)


ORDER = tuple(StartPhase)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase has come: `ratio` 0..1 where there is something to count, `detail` in words."""

    ratio: float | None = None
    detail: str = ""


NOTHING = Progress()

LOAD_ANNOUNCED = re.compile(r"^(?:Starting to load model|Loading drafter model|Loading weights with )")
"""Printed before the weights are there: a download may come first, and vLLM does not say so."""

_TAG = r"^(?:\[[^\]]{1,60}\] )?"
_MARKS: tuple[tuple[StartPhase, re.Pattern[str]], ...] = (
    (
        StartPhase.WARMING_UP,
        re.compile(
            r"^init engine \(|^Starting vLLM (?:API )?server\b|^Uvicorn running on|^Application startup complete|"
            r"^(?:Started server process|Waiting for application startup)|^Available routes are|"
            r"^Supported[_ ]tasks: \[",
        ),
    ),
    (
        StartPhase.CAPTURING_GRAPHS,
        re.compile(
            r"^Capturing (?:the model for |model for |\w+ )?(?:encoder )?(?:CUDA |cuda|HPU )?graphs?\b|"
            r"^Capturing \d+ encoder CUDA graphs|^Capturing (?:encoder|prefill|decode)\b|"
            r"^Graph capturing finished"
        ),
    ),
    (
        StartPhase.COMPILING,
        re.compile(
            rf"{_TAG}(?:Starting torch\.compile|torch\.compile t(?:akes|ook) [\d.]+ s|Dynamo bytecode transform time|"
            r"Using cache directory: .{1,400} for vLLM's torch\.compile|Compiling a graph for|Cache the graph |"
            r"Directly load (?:the |AOT )|Warming up model for the compilation)"
        ),
    ),
    (
        StartPhase.LOADING_WEIGHTS,
        re.compile(
            r"^Loading (?:[\w.-]+ )?(?:checkpoint )?shards\b|^Loading (?:[\w.-]+ )?checkpoint shards|"
            r"^Multi-thread loading (?:pt )?shards|^Loading safetensors using|^\[?RunAI Streamer|"
            r"^Loading (?:model )?weights took|^Model loading took"
        ),
    ),
    (
        StartPhase.DOWNLOADING,
        re.compile(
            r"^Time spent downloading weights|^[\w./-]{1,200}\.(?:safetensors|bin|pth?|gguf):\s+\d+%\||"
            r"^Fetching \d+ files: |^Downloading (?:shards|Model from|\[[^\]]+\.(?:safetensors|bin|pt|gguf)\])"
        ),
    ),
)


def phase_of(body: str) -> StartPhase | None:
    """Return the phase whose work `body` (a normalised line) tells of; None where it tells of none."""
    return next((phase for phase, pattern in _MARKS if pattern.search(body)), None)
