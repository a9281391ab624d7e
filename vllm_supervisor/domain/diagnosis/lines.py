"""One log line without what was wrapped around it: collectors' stamps, process groups, level, date, file.

Shapes: vLLM's own since 0.6 (`LEVEL MM-DD HH:MM:SS [file.py:N] `, with and without brackets), `(EngineCore pid=N) `
groups in any number, uvicorn, Ray, glog (`[E1224 ...]`), the JSON formatter of 0.33; around them docker compose,
`docker logs -t`, Kubernetes (CRI, `--timestamps`, `--prefix`), journald, and docker's JSON files.
"""

import json
import re
from dataclasses import dataclass
from typing import cast

MAX_LINE = 16384
"""Characters looked at from where a line begins: a progress bar captured whole runs to many kB. Of a longer one, some
at its end are."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TIME = r"\d{2}:\d{2}:\d{2}(?:[.,]\d+)?"
_STAMP = rf"\d{{4}}-\d{{2}}-\d{{2}}[T ]{_TIME}(?:Z|[+-]\d{{2}}:?\d{{2}})?"
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
"""What Kubernetes makes the random ends of names of."""
_BEGINS = rf"""(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]|\(?[A-Za-z_][\w.]*(?:Error|Exception|[ ]pid=)|Traceback[ ]|
    [ ]{{2}}File[ ]|\[(?:rank|[IWEF]\d)|{_STAMP}|usage:|[\w./-]+:[ ]error:|Killed|
    Bus[ ]error|Illegal[ ]instruction|Segmentation[ ]fault|Fatal[ ]Python|!!!|
    \{{"|\[\s{{0,8}}\d+\.\d+\]"""
"""What the lines of a log begin with that matter."""
_WRAPPERS = re.compile(
    rf"""
      (?:\d{{1,4}}\|)?[\w.-]+\s{{0,40}}\|\s                             # compose:    vllm-1  |   pm2: 0|vllm  |
    | >\s                                                           # quoted in Markdown or mail
    | \s{{0,8}}\d{{1,9}}\t                                           # cat -n
    | [\w./-]{{1,200}}\.(?:log|txt|out|err)(?:\.\d{{1,4}})?[:-](?:\d{{1,9}}[:-])?(?=\S|\s\s)   # grep -n
    | \d{{1,9}}(?:[:-]|:\s)(?={_BEGINS})                            # grep -n of one file, srun --label
    | \[{_STAMP}\]\s
    | <\d{{1,3}}>1\s{_STAMP}\s\S+\s\S+\s\S+\s\S+\s(?:-|\[[^\]]*\])\s  # syslog, RFC 5424
    | [a-z0-9][a-z0-9.-]{{0,200}}-{_SAFE}{{8,10}}-{_SAFE}{{5}}\s[a-z0-9-]{{1,63}}\s   # stern
    | [a-z0-9][a-z0-9.-]{{0,200}}-(?:\d{{1,4}}|{_SAFE}{{5}})\s[a-z0-9-]{{1,63}}\s(?={_BEGINS})   # stern
    | \[pod/[^\]\s]+\]\s                                             # kubectl --prefix
    | {_STAMP}\s\S+\s[\w./@-]+\[\d+\]:\s                             # journald -o short-iso
    | {_STAMP}\s(?:std(?:out|err)\s[FP]\s)?(?=\S)                    # RFC3339, with CRI's stream and flag
    | (?:<\d+>)?[A-Z][a-z]{{2}}\s+\d{{1,2}}\s{_TIME}\s\S+\s[\w./@-]+(?:\[\d+\])?:\s   # syslog, journald
    | \[(?:default)?\d*rank\d*\]:\s?                                 # torchrun, c10d
    | \[rank\d+\]:\s?
    | \[VllmSidecar[^\]]*\]:\sts\s\S+\sstd(?:out|err):\s
    | \([A-Za-z][^()]{{0,80}}?pid=\d+[^()]{{0,80}}\)\s?              # (EngineCore_DP0 pid=9), (X pid=1, ip=10.0.0.2)
    """,
    re.VERBOSE,
)
_BEGINNING = re.compile(_BEGINS, re.VERBOSE)
_VLLM = re.compile(
    rf"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?:\d{{4}}-)?\d\d-\d\d\s{_TIME}\s\[?(?P<file>[^\s:\]]+):\d+\]\s?"
)
_UVICORN = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):\s{1,8}(?=\S)")
_GLOG = re.compile(rf"\[(?P<letter>[IWEF])\d{{3,4}}\s{_TIME}(?:\s\d+)?\s(?P<file>[^\s:\]]+):\d+\]\s?")
_PLAIN = re.compile(
    rf"(?:{_STAMP}|\d\d-\d\d\s{_TIME})?[\s\[|:-]{{0,4}}(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[\s\]|:-]{{1,4}}"
)
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_DESCRIBED = re.compile(r"\s+(?=(?:Last State|State|Reason|Exit Code):\s+\S)")
"""The indentation of `kubectl describe`, which is deeper than a traceback's."""
_INDENTED = re.compile(r"\s{4,}(?=(?:\w+\.)*\w+(?:Error|Exception): )")
"""A pasted block; source code has no exception's name with a colon first on a line."""
_EXCEPTION_GROUP = re.compile(r"\s*(?:\+-[+-]*\s|\|\s)+")
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})


@dataclass(frozen=True, slots=True)
class Line:
    """What a line says. `level` is None where it bears none: tracebacks, libraries, the kernel."""

    body: str
    level: str | None = None
    file: str | None = None

    @property
    def quiet(self) -> bool:
        """Whether the program that wrote it did not call it an error."""
        return self.level in {"DEBUG", "INFO", "WARNING"}

    @property
    def frame(self) -> bool:
        """Whether it is part of a traceback's body: it quotes source code, which says nothing about what happened."""
        return self.body.startswith(("  File ", "    ", "\t\t", "raise ", 'File "', "except ", "^^^"))


def shortened(text: str, limit: int) -> str:
    """Return `text`, cut after a word where it is longer than `limit` characters, with an ellipsis then."""
    if len(text) <= limit:
        return text
    end = text.rfind(" ", limit // 2, limit + 1)
    return f"{text[: end if end > 0 else limit].rstrip()} …"


def parts(raw: str) -> list[str]:
    """Split into single lines what a terminal would overwrite (carriage returns) or a JSON record holds folded."""
    text = raw[:MAX_LINE]
    if text[:1] == "{":
        unfolded = _unfold(text)
        if unfolded is not None:
            return unfolded
    if "\r" in text:
        return [part for part in text.split("\r") if part.strip()]
    return [text]


def normalise(raw: str) -> Line:
    """Return what `raw` (one of `parts`) says, without its wrapping."""
    text = _ANSI.sub("", raw).rstrip() if "\x1b" in raw else raw.rstrip()
    level: str | None = None
    file: str | None = None
    for _ in range(8):
        if wrapped := _WRAPPERS.match(text):
            text = text[wrapped.end() :]
        elif own := _VLLM.match(text):
            level, file, text = own["level"], own["file"], text[own.end() :]
        elif (glog := _GLOG.match(text)) is not None:
            level, file, text = _LETTERS[glog["letter"]], glog["file"], text[glog.end() :]
        else:
            break
    if level is None and (other := _UVICORN.match(text) or _PLAIN.match(text)):
        level, text = other["level"], text[other.end() :]
    if level is None and (own := _VLLM.search(text, 0, 240)):
        level, file, text = own["level"], own["file"], text[own.end() :]
    if around := _EXCEPTION_GROUP.match(text) or _DESCRIBED.match(text) or _INDENTED.match(text):
        text = text[around.end() :]
    return Line(text, level, file)


def begins_a_line(text: str) -> bool:
    """Whether `text` looks like the beginning of a line of a log, and not like the rest of one that was broken."""
    return _BEGINNING.match(text) is not None or _WRAPPERS.match(text) is not None


def _unfold(text: str) -> list[str] | None:
    try:
        fields = cast("dict[str, object]", json.loads(text))  # a brace begins it: an object, or no JSON
    except (ValueError, RecursionError):
        return None
    message = next(
        (value for key in ("message", "MESSAGE", "log", "msg", "line", "textPayload") if (value := fields.get(key))),
        None,
    )
    if not isinstance(message, str):
        return None
    trace = fields.get("exc_info") or fields.get("stack_info") or ""
    whole = f"{message}\n{trace}" if isinstance(trace, str) and trace else message
    own = fields.get("levelname")  # vLLM's formatter; a collector's own `level` says nothing about the line
    prefix = f"{own}: " if own in _LEVELS else ""
    return [prefix + part for part in whole.splitlines() if part.strip()] or [prefix]
