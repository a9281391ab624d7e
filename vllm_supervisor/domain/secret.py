"""A value that cannot be printed by accident."""

from dataclasses import dataclass, field
from typing import NoReturn

MASK = "***"
_MARKS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


@dataclass(frozen=True, slots=True)
class Secret:
    """A key or token. `str`, `repr`, `format` and JSON show a mask; `reveal` is the only way to the value."""

    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Return the value, to be handed to the one who needs it and to nobody else."""
        return self._value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written anywhere")


def is_secret_name(name: str) -> bool:
    """Say whether a variable's or option's name marks a secret: `*KEY* *TOKEN* *SECRET* *PASSWORD*`, any case."""
    upper = name.upper()
    return any(mark in upper for mark in _MARKS)
