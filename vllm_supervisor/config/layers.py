"""The sources of the configuration, laid over each other: `--set`, environment, file. Each value keeps its origin."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_supervisor.config import interpolate, schema
from vllm_supervisor.config.engine import DEFAULT_LOG_FILE
from vllm_supervisor.config.paths import expand_home
from vllm_supervisor.config.schema import Shape
from vllm_supervisor.config.yamlfile import Document, Loc, dotted, parse_value
from vllm_supervisor.domain.secret import Secret, is_secret_name
from vllm_supervisor.errors import Problem

ENV_PREFIX = "VLLM_SUPERVISOR__"

_VLLM = ("engine", "vllm")
_PATHS: tuple[Loc, ...] = (
    (*_VLLM, "log_file"),
    (*_VLLM, "cwd"),
    (*_VLLM, "model"),
    (*_VLLM, "launcher", 0),
    ("control", "socket"),
    ("state_dir",),
)
"""Where a leading `~` is a home directory. vLLM itself does not expand one in a model's folder."""

_IN_UTF8 = "write it in UTF-8"


@dataclass(slots=True)
class Layers:
    """Plain data with references filled in, not yet validated."""

    name: str
    data: dict[str, Any]
    origins: dict[Loc, str]
    problems: list[Problem] = field(default_factory=list)
    broken: set[Loc] = field(default_factory=set)
    """Values whose references could not be filled in: None, and told."""
    filled: set[Loc] = field(default_factory=set)
    """Values that hold a reference, so that the source does not show them."""
    masked: set[Loc] = field(default_factory=set)
    """Values that a secret went into."""
    secrets: list[Secret] = field(default_factory=list)

    def where(self, loc: Loc) -> str:
        """Return the origin of the value at `loc`, or of the nearest thing around it."""
        for end in range(len(loc), -1, -1):
            if loc[:end] in self.origins:
                return self.origins[loc[:end]]
        return self.name

    def given(self, loc: Loc) -> bool:
        """Say whether any source gave this value, as opposed to the default."""
        return loc in self.origins

    def value(self, loc: Loc) -> Any:
        """Return the value at `loc`, or None."""
        node: Any = self.data
        for part in loc:
            if isinstance(node, dict):
                node = node.get(part)
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                node = node[part]
            else:
                return None
        return node

    def hides(self, loc: Loc) -> bool:
        """Say whether the value at `loc` may be a secret, so that no message repeats it."""
        named = any(isinstance(part, str) and is_secret_name(part) for part in loc)
        return named or any(loc[:end] in self.masked for end in range(len(loc) + 1))

    def add(self, loc: Loc, why: str, remedy: str) -> None:
        """Note a problem at `loc`."""
        self.problems.append(Problem(self.where(loc), dotted(loc), why, remedy))


def build(document: Document, sets: Sequence[str], environ: Mapping[str, str]) -> Layers:
    """Lay the sources over each other, fill in references and home directories."""
    origins = {loc: f"{document.name}:{line}" for loc, line in document.lines.items()}
    layers = Layers(document.name, document.data, origins, list(document.problems))
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name != ENV_PREFIX:
            _overlay(layers, name, name.removeprefix(ENV_PREFIX).split("__"), "__", environ[name])
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            layers.problems.append(Problem("--set", key[:60], "has no =", "write --set KEY=VALUE"))
        else:
            _overlay(layers, "--set", key.strip().split("."), ".", value)
    _expand(layers, environ)
    section = layers.value(_VLLM)
    if isinstance(section, dict):
        section.setdefault("log_file", DEFAULT_LOG_FILE)  # a default with a home directory in it is expanded as well
    for loc in _PATHS:
        _home(layers, loc, environ)
    return layers


def _overlay(layers: Layers, origin: str, parts: list[str], joint: str, text: str) -> None:
    loc, shape = _resolve(parts, joint)
    if shape is None:
        layers.problems.append(Problem(origin, dotted(loc), "is not a known key", schema.suggestion(loc)))
        return
    value: Any = text
    # What is not UTF-8 stays as it is, to be told by `_expand`: a YAML reader would speak of a forbidden character.
    if shape is not Shape.SCALAR and text.lstrip().startswith(("[", "{")) and _is_utf8(text):
        value, problems = parse_value(text, origin, dotted(loc))
        if problems:
            layers.problems += problems
            return
    _put(layers, loc, value, origin)


def _resolve(parts: Iterable[str], joint: str) -> tuple[Loc, Shape | None]:
    """Return the location that the words name, and what stands there; no shape when there is no such key."""
    loc: tuple[str, ...] = ()
    rest = list(parts)
    while rest:
        if schema.KEYS[loc].shape is Shape.TABLE:
            return (*loc, joint.join(rest)), Shape.SCALAR
        step = (*loc, rest.pop(0).lower())
        if step not in schema.KEYS:
            return step, None
        loc = step
    return loc, schema.KEYS[loc].shape


def _put(layers: Layers, loc: Loc, value: Any, origin: str) -> None:
    node: Any = layers.data
    for part in loc[:-1]:
        if node.get(part) is None:
            node[part] = {}
        node = node[part]
        if not isinstance(node, dict):
            return  # the file has something else where a section belongs, and validation says so
    if isinstance(value, dict) and isinstance(node.get(loc[-1]), dict):
        for key, item in value.items():
            _put(layers, (*loc, key), item, origin)
        return
    node[loc[-1]] = value
    for known in [known for known in layers.origins if known[: len(loc)] == loc]:
        del layers.origins[known]
    layers.origins[loc] = origin


def _expand(layers: Layers, environ: Mapping[str, str]) -> None:
    credential = interpolate.credentials(environ)

    def walk(value: Any, loc: Loc) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*loc, key)) for key, item in value.items() if _named(layers, (*loc, key))}
        if isinstance(value, list):
            return [walk(item, (*loc, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        done = interpolate.expand(value, environ, credential)
        if not done.problems and not _is_utf8(done.text):
            done.problems.append(
                ("is not UTF-8", _IN_UTF8 if done.text == value else "set the variable in it to UTF-8")
            )
        for why, remedy in done.problems:
            layers.add(loc, why, remedy)
        if done.text != value:
            layers.filled.add(loc)
        if done.secrets:
            layers.masked.add(loc)
            layers.secrets += [Secret(part) for part in done.secrets]
        if done.problems:
            layers.broken.add(loc)
            return None
        return done.text

    layers.data = walk(layers.data, ())


def _named(layers: Layers, loc: Loc) -> bool:
    """Say whether the entry at `loc` can stay; tell of a name that is not UTF-8, unless it is no known key anyway."""
    if _is_utf8(str(loc[-1])) or schema.find(loc) is None:
        return True
    layers.add(loc, "has a name that is not UTF-8", _IN_UTF8)
    return False


def _is_utf8(text: str) -> bool:
    """Say whether a text can be encoded. Other bytes of arguments and variables arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _home(layers: Layers, loc: Loc, environ: Mapping[str, str]) -> None:
    value = layers.value(loc)
    if not isinstance(value, str) or not value.startswith("~"):
        return
    expanded = expand_home(value, environ)
    if expanded is None:
        user = value.split("/", 1)[0]
        layers.add(loc, f"{user} has no home directory", "write the path in full")
        return
    parent = layers.value(loc[:-1])
    parent[loc[-1]] = expanded
