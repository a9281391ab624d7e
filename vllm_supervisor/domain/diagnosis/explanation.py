"""The shape of an explanation."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A command to run, and what it shows where this is the cause."""

    command: str
    shows: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an operator needs to know of a class."""

    cls: str
    summary: str
    cause: str
    confirm: tuple[Check, ...]
    remedy: tuple[str, ...]
    """The first one stands alone as the action where the log gave no numbers."""

    @property
    def action(self) -> str:
        """The remedy in one sentence."""
        return self.remedy[0]
