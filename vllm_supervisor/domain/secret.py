"""A value that cannot be printed by accident."""

import re
from typing import Final, NoReturn, Self

MASK = "***"
_MARKED = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|(?:^|[^A-Z])(?:PASS|PWD)$|CREDENTIALS?$|CONNECTION[_-]?STRING"
)
"""`BYPASS` is no `DB_PASS`."""
_NONE = frozenset({"PWD", "OLDPWD"})
"""The shell's folders."""


class Secret:
    """A key or token. `str`, `repr` and `format` show a mask; `reveal` is the only way to the value.

    Not a dataclass: `dataclasses.asdict` of whatever holds it would open it and hand out the value.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value: Final = value

    def reveal(self) -> str:
        """Return the value, to be handed to the one who needs it and to nobody else."""
        return self._value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written anywhere")


def is_secret_name(name: str) -> bool:
    """Say whether a variable's or option's name marks a secret, in any case.

    `*KEY* *TOKEN* *SECRET* *PASSWORD* *PASSWD* *PASSPHRASE* *CONNECTION_STRING*`, and what ends with the word `PASS`,
    or with `CREDENTIAL(S)`.
    """
    upper = name.upper()
    return upper not in _NONE and _MARKED.search(upper) is not None
