"""Finds secrets in any text by their form and by the names before them: no knowledge of their values is needed.

What it finds errs on the side of hiding; what vLLM prints about keys and tokens that are none (`max_tokens=100`,
`eos_token='</s>'`, `KeyError: 'model.layers'`) stays readable. Time is linear in the text: every repetition is bounded,
and nothing is looked at twice.
"""

import re
from collections.abc import Iterator

from vllm_supervisor.domain.naming import names_secret_in_text, option_names_secret
from vllm_supervisor.domain.secret import MASK

_Span = tuple[int, int]

_FORMS = (
    (("hf_",), re.compile(r"\bhf_(?!transformers\b)[A-Za-z0-9]{10,200}\b")),
    (
        ("sk-", "api_org_", "nvapi-", "gh", "glpat-", "xox"),
        re.compile(r"\b(?:sk-|api_org_|nvapi-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[\w-]{8,300}"),
    ),
    (("AKIA", "ASIA", "AIza"), re.compile(r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}\b|AIza[\w-]{30,40})")),
    (("eyJ",), re.compile(r"\beyJ[\w-]{5,2000}\.[\w-]{4,4000}\.[\w-]{0,2000}")),  # a JSON Web Token
    # A URL's credentials, and those of what is no URL; no digest of an image, and no time of day
    (("://",), re.compile(r"(?<=://)[^/\s:@'\"]{0,100}:(?!\*\*\*@)[^/\s'\"]{1,256}(?=@)")),
    (
        ("@",),
        re.compile(r"(?<![\w/.+-])[\w.+-]{1,64}:(?![\d.]+@)[^\s@/:'\"(){}\[\],<>*]{3,128}(?=@(?!sha256:)[A-Za-z0-9])"),
    ),
)
"""Secrets by their form alone, each with what stands in all of them: searching for that first costs next to nothing."""

_AUTHORIZED = re.compile(
    r"authorization['\"\\]{0,4}\s{0,4}[:=,]\s{0,4}['\"\\]{0,4}(?:(?:basic|bearer|digest|negotiate|token|apikey)\s{1,4})?"
    r"(?P<header>[^\s'\"\\,{}\[\]]{3,8000})"
    r"|\bbearer\s{1,4}(?!tokens?\b|auth|scheme)(?P<bearer>[^\s'\"\\,{}\[\]]{6,8000})",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"(?:\b(?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential))"
    r"|[?&;](?:sig|signature|key-pair-id|key|policy|code|auth|password|pwd))=(?P<value>[^\s&'\"\\,;<>]{1,4000})",
    re.IGNORECASE,
)
_MARKS = ("key", "token", "secret", "pass", "pwd", "credential", "connection")
_NAME = re.compile(r"key|token|secret|passw|passphrase|pass\b|pwd|credential|connection[_-]?string")
_BACK = 80
"""Characters of a name that are looked at before the word that marks it."""
_NAME_BEGINS = re.compile(r"[\w-]{0,80}\Z")
_NAME_ENDS = re.compile(r"[\w-]{0,40}")
_ASSIGNED = re.compile(r"\\{0,3}['\"]?\s{0,4}(?:=>|:=|=|:)\s{0,8}")
_FOLLOWS = re.compile(r"\\{0,3}['\"]?,?\s{1,4}(?!-)|\\{0,3}['\"],(?!-)")
"""Between an option and its value: a space, or the comma of a list."""
_ANNOTATED = re.compile(
    r"(?:Optional|Union|SecretStr|str|bytes|Any|None|list|List)\b[\w.\[\]|, ]{0,60}?\s{0,2}=\s{0,2}"
)
"""`api_key: Optional[str] = 'X'` in a line of source."""
_VALUE = re.compile(
    r"(?:[A-Za-z_][\w.]{0,40}\(\s?|[bru])?"  # SecretStr('X'), b'X'
    r"(?:(?P<esc>\\{1,3}['\"])(?P<escaped>(?:(?!(?P=esc))[^\n]){0,8000})"
    r"|'(?P<single>(?:[^'\\\n]|\\.){0,8000})"
    r"|\"(?P<double>(?:[^\"\\\n]|\\.){0,8000})"
    r"|[\[(](?P<several>[^\])\n]{0,8000}))"
    r"|(?P<bare>[^\s,;&'\"\\)\]}({\[]{1,8000})"
)
_HARMLESS = re.compile(r"(?:none|null|true|false|auto|unset|default|not set|\*{3,}.*)?\Z", re.IGNORECASE)
_FIGURE = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?[kKMG]?\Z")
_SPECIAL = re.compile(r"<[^<>]{1,40}>\Z")
"""`</s>`, `<|eot_id|>`: a token of text."""
_ALWAYS = re.compile(r"secret|passw|passphrase|pwd|credential", re.IGNORECASE)

_PEM = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----")
_PEM_END = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY-----")
_PEM_LINES = 120
_PEM_LINE = re.compile(r"[A-Za-z0-9+/=]{16,8000}|[A-Za-z0-9+/=]{1,15}(?=\s{0,4}$)", re.MULTILINE)


def redacted(text: str) -> str:
    """Return `text` with `***` in the place of whatever looks like a secret."""
    parts, end = [], 0
    for begin, after in _spans(text):
        parts += [text[end:begin], MASK]
        end = after
    return "".join([*parts, text[end:]])


def secrets_in(text: str) -> Iterator[str]:
    """Yield what `redacted` would replace, and the parts of it that stand alone elsewhere: a URL's password."""
    for begin, end in _spans(text):
        value = text[begin:end]
        yield value
        yield from (part for part in re.split(r"['\",\s]+", value) if part != value)
        if text[end : end + 1] == "@":
            yield value.partition(":")[2]


def _spans(text: str) -> list[_Span]:
    """Return where the secrets stand, in order and apart from each other."""
    found = list(_private_keys(text)) if "PRIVATE KEY-----" in text else []
    place = 0
    # Line by line: one search holds the interpreter, and the control socket waits for that long.
    for line in text.split("\n"):
        found += [(place + begin, place + end) for begin, end in _in_line(line)]
        place += len(line) + 1
    return _merged(sorted(span for span in found if text[slice(*span)].strip("*")))


def _in_line(line: str) -> Iterator[_Span]:
    lowered = line.lower()
    if len(lowered) != len(line):  # some letters of other scripts: places would differ
        lowered = "".join(c if c.isascii() else "?" for c in line).lower()
    if any(mark in lowered for mark in _MARKS):
        yield from _named(line, lowered)
    for needles, form in _FORMS:
        if any(needle in line for needle in needles):
            yield from (match.span() for match in form.finditer(line))
    if "bearer" in lowered or "authorization" in lowered:
        for match in _AUTHORIZED.finditer(line):
            yield match.span("header" if match["header"] is not None else "bearer")
    if "=" in line and ("x-" in lowered or "?" in line or "&" in line):
        yield from (match.span("value") for match in _QUERY.finditer(line))


def _merged(spans: list[_Span]) -> list[_Span]:
    merged: list[_Span] = []
    for begin, end in spans:
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _named(text: str, lowered: str) -> Iterator[_Span]:
    """Yield the values that stand after a secret's name: assigned to it, or given to an option."""
    place = 0
    while (mark := _NAME.search(lowered, place)) is not None:
        name_begins = _name_begins(text, mark.start(), place)
        ends = _NAME_ENDS.match(text, mark.end())
        name_ends = ends.end() if ends else mark.end()
        place = name_ends
        span = _value_of(text, name_begins, name_ends)
        if span is not None:
            yield span
            place = max(place, span[1])


def _name_begins(text: str, marked: int, floor: int) -> int:
    start = max(floor, marked - _BACK)
    begins = _NAME_BEGINS.search(text[start:marked])
    return start + begins.start() if begins else marked


def _value_of(text: str, begin: int, end: int) -> _Span | None:
    name = text[begin:end]
    option = name.startswith("-")
    separator = _ASSIGNED.match(text, end)
    if separator is None:
        # `--api-key X`, `'--api-key', 'X'`
        separator = _FOLLOWS.match(text, end) if option and option_names_secret(name) else None
        return None if separator is None else _value_at(text, separator.end(), name, assigned=False)
    at = separator.end()
    sign = separator.group().strip("\\'\" \t\n")
    in_prose = sign == ":" and separator.group()[:1] not in "\\'\""
    if in_prose and (annotated := _ANNOTATED.match(text, at)) is not None:
        at, in_prose = annotated.end(), False
    # Argparse complains so of a flag that lacks its value.
    if (option and in_prose) or not names_secret_in_text(name, in_prose=in_prose):
        return None
    return _value_at(text, at, name, assigned=True)


def _value_at(text: str, at: int, name: str, *, assigned: bool) -> _Span | None:
    match = _VALUE.match(text, at)
    if match is None:
        return None
    kind = match.lastgroup or "bare"
    kind = "escaped" if kind == "esc" else kind
    value = match[kind]
    if _HARMLESS.match(value) or _placeholder(value, name):
        return None
    if not _ALWAYS.search(name) and (_FIGURE.match(value) or _SPECIAL.match(value)):
        return None
    if not assigned and kind == "bare" and not value[:1].isalnum():
        return None
    begin, end = match.span(kind)
    return (begin, end) if kind != "bare" else (begin, begin + len(value.rstrip(".:") or value))


def _placeholder(value: str, name: str) -> bool:
    """Say whether usage text names the value so: `--api-key API_KEY`."""
    return value.isupper() and value.rstrip(".") == name.strip("-").replace("-", "_").upper()


def _private_keys(text: str) -> Iterator[_Span]:
    place = 0
    while (begin := _PEM.search(text, place)) is not None:
        limit = begin.end()
        for _ in range(_PEM_LINES):
            newline = text.find("\n", limit)
            limit = len(text) if newline < 0 else newline + 1
            if newline < 0:
                break
        end = _PEM_END.search(text, begin.end(), limit)
        place = end.start() if end else limit
        if end is not None and "\n" not in text[begin.end() : place]:
            yield begin.end(), place
        else:
            # Each line may have a prefix of the log's, which stays.
            yield from (match.span() for match in _PEM_LINE.finditer(text, begin.end(), place))
