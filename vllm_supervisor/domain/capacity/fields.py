"""A model's `config.json`, read by name: many names for one thing, and one clear refusal for what makes no sense."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_supervisor.errors import BadInputError

_MOST = 1 << 40
"""No count in a configuration is larger; what is would only overflow later, and elsewhere."""
_ONCE = frozenset({"hidden_size", "num_hidden_layers", "vocab_size", "head_dim", "max_position_embeddings"})
"""Counts of the whole model: a list, as some write one for what each layer has, makes no sense for them."""
_REMEDY = "name a model's own, complete config.json"


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of a configuration. `where` names it to the user."""

    values: Mapping[str, Any]
    where: str = "config.json"

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first of `names` that is given, a whole number above 0.

        Raises BadInputError where it is none, and where nothing is given and there is no default.
        """
        found = self.optional(*names)
        if found:
            return found
        if found == 0 and default is None:
            raise BadInputError(self.where, f"{names[0]} is 0", _REMEDY)
        if default is not None:
            return default
        raise BadInputError(self.where, f"it has no {' or '.join(names)}", _REMEDY)

    def optional(self, *names: str) -> int | None:
        """Return the first of `names` that is given, 0 or more; None where none is."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and name not in _ONCE and all(item == value[0] for item in value):
                value = value[0]  # some write a number for each layer, all of them alike
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
                raise BadInputError(self.where, f"{name} is {_short(value)}, not a count", _REMEDY)
            return value
        return None

    def has(self, name: str) -> bool:
        """Say whether `name` is given and not null."""
        return self.values.get(name) is not None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value. Raises BadInputError for a text, a list or an object."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, int | float):
            raise BadInputError(self.where, f"{name} is {_short(value)}, not true or false", _REMEDY)
        return default if value is None else bool(value)

    def text(self, name: str) -> str:
        """Return a text; an empty one for whatever else is there."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def part(self, name: str) -> "Fields":
        """Return an object inside; an empty one where there is none. Raises BadInputError for anything else."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise BadInputError(self.where, f"{name} is {_short(value)}, not an object", _REMEDY)
        return Fields(value or {}, f"{self.where}: {name}")

    def items(self, name: str) -> tuple[Any, ...]:
        """Return a list; an empty one where there is none. Raises BadInputError for anything else."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise BadInputError(self.where, f"{name} is {_short(value)}, not a list", _REMEDY)
        return tuple(value or ())

    def words(self, name: str) -> tuple[str, ...]:
        """Return the items of a list as texts."""
        return tuple(str(item) for item in self.items(name))

    def places(self, name: str) -> frozenset[int]:
        """Return the numbers in a list."""
        return frozenset(item for item in self.items(name) if isinstance(item, int))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"  # noqa: PLR2004 - enough to recognise it
