"""Whether another start helps: what a diagnosis says of a failure, and what the machine goes by."""

from enum import StrEnum


class Retry(StrEnum):
    """What another start would bring."""

    PERMANENT = "permanent"
    """The same start fails the same way: something has to be changed first."""
    NEEDS_OPERATOR = "needs_operator"
    """Something outside the engine (a host, an account, a neighbour) has to be put right by a person."""
    TRANSIENT = "transient"
    """It passes by itself: try again, with backoff, without end."""
    TRANSIENT_ONCE = "transient_once"
    """Another start often helps; one that fails again and again does not."""
