"""Numbers as they are shown, and versions as they are compared."""

import re

MIB = 1 << 20
GIB = 1 << 30
GB = 10**9


def gib(count: float) -> str:
    """Return bytes in GiB, with the digits that matter."""
    return f"{count / GIB:.1f} GiB"


def gb(count: float) -> str:
    """Return bytes as disks and downloads are measured."""
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 10**6:.1f} MB"


def version(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version, none for what has none: `0.32.0+cpu` is (0, 32, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def dotted(numbers: tuple[int, ...]) -> str:
    """Return a version as it is written."""
    return ".".join(str(number) for number in numbers)
