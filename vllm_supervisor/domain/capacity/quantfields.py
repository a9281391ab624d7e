"""Numbers and sections of a `quantization_config`: ValueError says what is wrong with one."""

from collections.abc import Mapping
from typing import Any

MOST = 1 << 20
"""No group of numbers that share a scale is larger."""
_GROUP = 128


def weights_only(bits: float, group: int = _GROUP, *, zeros: bool = True) -> float:
    """Return the bits of a parameter with a 16-bit scale, and a zero of its own width, for each `group` of them."""
    return bits + (16 + (bits if zeros else 0)) / group if group > 0 else bits


def number(found: Mapping[str, Any], *names: str, default: int) -> int:
    """Return the first of `names` that is given. Raises ValueError where it is no whole number."""
    for name in names:
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST:
            raise ValueError(f"{name} is {str(value)[:40]!r}, not a number")
        return value
    return default


def width(found: Mapping[str, Any], *names: str, known: tuple[int, ...]) -> int:
    """Return the bits of a number. Raises ValueError for a width that the method does not have."""
    bits = number(found, *names, default=4)
    if bits not in known:
        raise ValueError(f"{names[0]} is {bits}, not one of {', '.join(map(str, known))}")
    return bits


def group_size(found: Mapping[str, Any], *names: str) -> int:
    """Return how many numbers share a scale; -1 where all of a channel do."""
    group = number(found, *names, default=_GROUP)
    if group != -1 and group <= 0:
        raise ValueError(f"{names[0]} is {group}, neither a size nor -1")
    return group


def section(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object inside; an empty one where there is none."""
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}
