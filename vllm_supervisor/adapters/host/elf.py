"""What a shared library asks the loader for: the DT_NEEDED and DT_RUNPATH entries of a 64-bit ELF file."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"\x7fELF\x02\x01"
"""64-bit, little-endian: the only kind that vLLM's wheels exist for."""
_HEADER = struct.Struct("<16x HHIQQQI HHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NULL, _NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 0, 1, 5, 10, 15, 29
_MAX_STRINGS = 16 << 20
_MAX_SEGMENTS = 1000
_MAX_DYNAMIC = 1 << 20


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The libraries that are needed, and the folders in which the file itself asks to look for them."""

    needed: tuple[str, ...]
    runpath: tuple[str, ...]


def read(path: Path) -> Dynamic | None:
    """Return what `path` needs; None for what is no such file, is damaged or cannot be read. Reads kilobytes only."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, ValueError):
        return None


def _read(file: BinaryIO) -> Dynamic | None:
    head = file.read(_HEADER.size)
    if not head.startswith(_MAGIC):
        return None
    _, _, _, _, table, _, _, _, size, count, *_ = _HEADER.unpack(head)
    if count > _MAX_SEGMENTS or size < _SEGMENT.size:
        return None
    segments = []
    for number in range(count):
        file.seek(table + number * size)
        kind, _, offset, address, _, length, *_ = _SEGMENT.unpack(file.read(_SEGMENT.size))
        segments.append((kind, offset, address, length))
    entries: list[tuple[int, int]] = []
    for kind, offset, _, length in segments:
        if kind == _DYNAMIC and length <= _MAX_DYNAMIC:
            file.seek(offset)
            entries = list(_ENTRY.iter_unpack(file.read(length - length % _ENTRY.size)))
    ends = next((at for at, (tag, _) in enumerate(entries) if tag == _NULL), len(entries))
    values = dict(entries[:ends])
    where, length = values.get(_STRTAB), values.get(_STRSZ, 0)
    if where is None or length > _MAX_STRINGS:
        return None
    home = next(
        (offset + where - at for kind, offset, at, size in segments if kind == _LOAD and at <= where < at + size), where
    )
    file.seek(home)
    strings = file.read(length)

    def texts(*tags: int) -> tuple[str, ...]:
        starts = [value for tag, value in entries[:ends] if tag in tags]
        return tuple(strings[start : strings.index(b"\0", start)].decode(errors="replace") for start in starts)

    folders = [folder for text in texts(_RPATH, _RUNPATH) for folder in text.split(":") if folder]
    return Dynamic(texts(_NEEDED), tuple(folders))
