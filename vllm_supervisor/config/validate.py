"""From layered data to settings: every value checked, every refusal in words, and as much kept as can be."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vllm_supervisor.config import schema
from vllm_supervisor.config.layers import Layers
from vllm_supervisor.config.schema import Shape
from vllm_supervisor.config.settings import Settings
from vllm_supervisor.config.yamlfile import Loc

_MODEL: Loc = ("engine", "vllm", "model")
_WORDS: frozenset[Loc] = frozenset({("engine", "vllm", "launcher"), ("engine", "vllm", "extra_args")})
_MAX_SHOWN = 60

_PLAIN = {
    "literal_error": "is not a possible value",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
    "model_attributes_type": "is not a mapping",
    "tuple_type": "is not a list",
    "int_parsing_size": "is out of range",
    "string_unicode": "is not valid UTF-8",
}
_FAMILIES = {"int": "is not a whole number", "float": "is not a number", "bool": "is neither true nor false"}
_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "is below"),
    "greater_than": ("gt", "is not above"),
    "less_than_equal": ("le", "is above"),
}


def validate(layers: Layers) -> tuple[Settings | None, set[Loc]]:
    """Return the settings, and the keys whose values were refused and stand at their defaults.

    Problems are added to `layers`. Settings come back also when there are problems, so that checks across keys can
    still speak of the rest: the caller must not use them for more. None when nothing could be made of the data.
    """
    refused: set[Loc] = set()
    _drop_unknown(layers, (), layers.data)
    _open_sections(layers)
    for _ in range(3):
        try:
            return Settings(**layers.data), refused
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                loc = _refuse(layers, detail)
                if not _mend(layers, loc):
                    refused.add(schema.home(loc))
        for loc in refused:
            _drop(layers, loc)
        _open_sections(layers)
        layers.data["engine"]["vllm"].setdefault("model", "model")
    return None, refused


def _drop_unknown(layers: Layers, base: Loc, node: dict[str, Any]) -> None:
    """Report and drop unknown keys. Left in, `_env_file` at the top would be an argument to pydantic-settings."""
    for name in list(node):
        loc = (*base, name)
        found = schema.find(loc)
        if found is None:
            layers.add(loc, "is not a known key", schema.suggestion(loc))
            del node[name]
        elif found[1].shape is Shape.SECTION:
            if isinstance(node[name], dict):
                _drop_unknown(layers, loc, node[name])
            elif node[name] is None:
                del node[name]  # a heading whose keys are all commented out


def _open_sections(layers: Layers) -> None:
    """Make room for the required key, so that its absence is told by its full name."""
    engine = layers.data.setdefault("engine", {})
    if isinstance(engine, dict):
        engine.setdefault("vllm", {})


def _mend(layers: Layers, loc: Loc) -> bool:
    """Put a stand-in for one refused word of a command, so that the other words are still looked at."""
    words = layers.value(loc[:-1])
    if loc[:-1] not in _WORDS or not isinstance(words, list) or not isinstance(loc[-1], int):
        return False
    words[loc[-1]] = "?"
    return True


def _drop(layers: Layers, loc: Loc) -> None:
    parent = layers.value(loc[:-1])
    if isinstance(parent, dict):
        parent.pop(loc[-1], None)


def _refuse(layers: Layers, detail: ErrorDetails) -> Loc:
    loc: Loc = tuple(part for part in detail["loc"] if part != "[key]")
    found = schema.find(loc)
    text = found[1].text if found else ""
    context = detail.get("ctx", {})
    remedy = context.get("remedy") or (f"give {text}" if text else "remove it")
    if any(loc[:end] in layers.broken for end in range(len(loc) + 1)):
        return loc  # told already, when its reference could not be filled in
    if detail["type"] == "missing":
        layers.add(loc, "is missing", f"give {text}")
    else:
        layers.add(loc, _why(detail, layers.value(loc), hidden=layers.hides(loc)), remedy)
    return loc


def _why(detail: ErrorDetails, value: object, *, hidden: bool) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "refused":
        return str(context["why"])
    shown = _shown(value, hidden=hidden)
    if kind == "refused_shown":
        return f"{shown} {context['why']}"
    if value is None:
        return "is empty"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{shown} {words} {context[name]:g}"
    if kind == "too_short":
        return "is empty"
    words = _PLAIN.get(kind) or _FAMILIES.get(kind.split("_")[0]) or f"is refused: {detail['msg'].lower()}"
    return f"{shown} {words}"


def _shown(value: object, *, hidden: bool) -> str:
    kinds: tuple[tuple[type, str], ...] = ((dict, "a mapping"), (list, "a list"))
    for kind, words in kinds:
        if isinstance(value, kind):
            return words
    if hidden:
        return "the value"
    if isinstance(value, bool):
        return str(value).lower()
    text = _repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _repr(value: object) -> str:
    write: Callable[[object], str] = repr if isinstance(value, str) else str
    return str(getattr(value, "text", None) or write(value))
