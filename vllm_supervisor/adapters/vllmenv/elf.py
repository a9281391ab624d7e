"""The libraries that a shared object was linked against, read without tools: a host has no readelf."""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"
"""64 bits, little-endian: x86-64 and aarch64, all that vLLM is published for."""
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")


def needed(path: Path) -> tuple[str, ...]:
    """Return the names of the DT_NEEDED entries; none for what is no such file, is truncated or cannot be read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return tuple(_names(data)) if data[: len(_MAGIC)] == _MAGIC else ()
    except (OSError, ValueError, OverflowError, struct.error):
        return ()


def _names(data: mmap.mmap) -> Iterator[str]:
    (table,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    segments = [_SEGMENT.unpack_from(data, table + index * size) for index in range(count)]
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind != _PT_DYNAMIC:
            continue
        entries = list(_ENTRY.iter_unpack(data[offset : offset + length - length % _ENTRY.size]))
        tags = entries[: next((at for at, (tag, _) in enumerate(entries) if tag == _DT_NULL), len(entries))]
        strings = next((_offset(segments, value) for tag, value in tags if tag == _DT_STRTAB), None)
        if strings is None:
            return
        for tag, value in tags:
            end = data.find(b"\0", strings + value)
            if tag == _DT_NEEDED and end >= 0:
                yield data[strings + value : end].decode(errors="replace")


def _offset(segments: list[tuple[int, ...]], address: int) -> int | None:
    """Return where in the file the loader would map this address from."""
    for kind, _, offset, start, _, length, _, _ in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            return offset + address - start
    return None
