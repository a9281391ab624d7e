"""The tree of known keys: what a key is, and which known one an unknown one resembles."""

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vllm_supervisor.config.settings import Settings
from vllm_supervisor.config.yamlfile import Loc, dotted


class Shape(Enum):
    """What stands at a key."""

    SECTION = "section"
    TABLE = "table"
    """A mapping whose keys the user chooses."""
    LIST = "list"
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class Key:
    """A known key. `text` completes the sentence "give …"."""

    shape: Shape
    text: str = ""
    nullable: bool = False


def _key(field: FieldInfo) -> Key:
    annotation = field.annotation
    origin = get_origin(annotation)
    nullable = origin in {Union, types.UnionType} and type(None) in get_args(annotation)
    if _section(field) is not None:
        shape = Shape.SECTION
    else:
        shape = Shape.TABLE if origin is dict else Shape.LIST if origin is tuple else Shape.SCALAR
    return Key(shape, field.description or "", nullable)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _walk(model: type[BaseModel], base: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Key]]:
    for name, field in model.model_fields.items():
        yield (*base, name), _key(field)
        section = _section(field)
        if section is not None:
            yield from _walk(section, (*base, name))


KEYS: dict[tuple[str, ...], Key] = {(): Key(Shape.SECTION, "a mapping"), **dict(_walk(Settings, ()))}


def find(loc: Loc) -> tuple[Loc, Key] | None:
    """Return the known key at `loc`, or the one that `loc` is an entry of; None when there is none."""
    for end in range(len(loc), -1, -1):
        key = KEYS.get(tuple(str(part) for part in loc[:end]))
        if key is not None:
            inside = end < len(loc)
            return (loc[:end], key) if not inside or key.shape in {Shape.TABLE, Shape.LIST} else None
    return None


def home(loc: Loc) -> Loc:
    """Return the known key that `loc` is, or is an entry of; `loc` itself when it is neither."""
    found = find(loc)
    return found[0] if found else loc


def suggestion(loc: Loc) -> str:
    """Return the remedy for an unknown key: the nearest known one, with its full path when it lives elsewhere."""
    parent = tuple(str(part) for part in loc[:-1])
    name = str(loc[-1]).lower().replace("-", "_") if loc else ""
    siblings = [key[-1] for key in KEYS if key and key[:-1] == parent]
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{near[0]}`?"
    elsewhere: dict[str, list[str]] = {}
    for key in KEYS:
        if key:
            elsewhere.setdefault(key[-1], []).append(dotted(key))
    near = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.8)
    if near:
        return f"did you mean `{'` or `'.join(elsewhere[near[0]])}`?"
    return f"remove it; known here: {', '.join(siblings)}" if siblings else "remove it"
