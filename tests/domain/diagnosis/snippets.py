"""Hand-made logs: real error strings, surroundings of our own. They stand in logs/*.txt, and pieces of them here.

In a file, `#### name | class | words of the remedy` begins a log; in healthy.txt it is `#### name`.
"""

from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent / "logs"


class Snippet(NamedTuple):
    """A log and its cause."""

    name: str
    cls: str
    action: str
    """Words that the remedy has to hold."""
    text: str


def _sections(path: Path) -> list[tuple[str, str]]:
    """Return headings and texts."""
    sections = path.read_text("utf-8").split("#### ")[1:]
    return [(heading, text) for heading, _, text in (section.partition("\n") for section in sections)]


def _snippet(heading: str, text: str) -> Snippet:
    name, cls, action = (part.strip() for part in heading.split("|"))
    return Snippet(name, cls, action, text)


SNIPPETS = tuple(
    _snippet(heading, text)
    for path in sorted(_FOLDER.glob("*.txt"))
    if path.name != "healthy.txt"
    for heading, text in _sections(path)
)
HEALTHY = dict(_sections(_FOLDER / "healthy.txt"))

OLD = "INFO 03-02 08:00:00 api_server.py:528] vLLM API server version 0.6.1\n"
MID = "INFO 05-02 08:00:00 [api_server.py:1043] vLLM API server version 0.8.4\n"
NEW = (
    "(APIServer pid=7) INFO 09-02 08:00:00 [api_utils.py:319] vLLM server version 0.24.0, serving model acme/m\n"
    "(EngineCore pid=9) INFO 09-02 08:00:20 [core.py:123] Initializing a V1 LLM engine (v0.24.0) with config: x\n"
)
LOADING = "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:02<00:06,  2.1s/it]\n"
READY = "INFO:     Application startup complete.\n"
SERVING = (
    READY + "(APIServer pid=7) INFO 09-02 08:03:10 [loggers.py:271] Engine 000: Avg prompt throughput: 9.0 tokens/s, "
    "Avg generation throughput: 40.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0%\n"
)
ERR = "(EngineCore pid=9) ERROR 09-02 08:02:00 [core.py:1330] "
FAILED = f"{ERR}EngineCore failed to start.\n{ERR}Traceback (most recent call last):\n"
GIVEN_UP = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
FATAL = f"{ERR}EngineCore encountered a fatal error.\n"
DEAD = (
    "(APIServer pid=7) ERROR 09-02 08:02:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.\n"
    "INFO:     Shutting down\n"
    "INFO:     Finished server process [7]\n"
)


def started_badly(message: str) -> str:
    """Return a new-era log of a start that fails with `message` in the engine."""
    frame = f'{ERR}  File "/x/worker.py", line 3, in run\n{ERR}    raise Problem(\n'
    return f"{NEW}{FAILED}{frame}{ERR}{message}\n{GIVEN_UP}"
