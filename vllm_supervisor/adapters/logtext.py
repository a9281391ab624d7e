"""Makes text of what a log comes as: packed with gzip, in UTF-16 as Windows saves it, or no text at all."""

import codecs
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

CHUNK = 1024 * 1024
"""Bytes read at a time: large enough for disk speed, and with the carry of one line all that is held."""
MAX_UNPACKED = 16 * 1024 * 1024 * 1024
"""Bytes taken out of a packed log at most: a few MB of zeros in it unpack to hours of reading."""

_HEAD = 8192
"""Bytes that tell what it is."""
_GZIP = b"\x1f\x8b"
_ZLIB_GZIP = 31
"""zlib's word for a stream with gzip's header."""
_PACKED = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
    (b"\xfd7zXZ\x00", "xz", "xzcat"),
    (b"BZh", "bzip2", "bzcat"),
    (b"PK\x03\x04", "zip", "unzip -p"),
)
_UTF16 = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\v\f\r\b\a\x1b") + b"\x7f"
_BINARY_SHARE = 0.02
"""Control characters among what is no text; a log holds next to none."""


class NoTextError(Exception):
    """What was given is no log. The message says what it is and what to do, in one line."""


def text_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the text of `stream`, which may be a pipe, in chunks. Raises OSError, and NoTextError for what is none."""
    pieces: Iterable[bytes] = iter(lambda: stream.read(CHUNK), b"")
    head, pieces = _peek(pieces)
    if head.startswith(_GZIP):
        head, pieces = _peek(_unpacked(pieces))
    for magic, name, tool in _PACKED:
        if head.startswith(magic):
            message = f"it is compressed ({name}): {tool} FILE | vllm-supervisor diagnose -"
            raise NoTextError(message)
    for mark, encoding in _UTF16:
        if head.startswith(mark) and b"\0" in head:
            return _recoded(pieces, encoding)
    if _is_binary(head):
        message = "it is no text but binary data; name a log file of vLLM, or pipe its text into `diagnose -`"
        raise NoTextError(message)
    return iter(pieces)


def _peek(pieces: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """Return the first bytes, and everything."""
    pieces = iter(pieces)
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _HEAD:
            break
    return b"".join(held)[:_HEAD], chain(held, pieces)


def _unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack; several members may follow each other, and one that is cut gives what it holds."""
    unpacker, total = zlib.decompressobj(_ZLIB_GZIP), 0
    for piece in pieces:
        data = piece
        while data:
            try:
                text = unpacker.decompress(data, CHUNK)
            except zlib.error as error:
                message = f"its gzip data is damaged ({error}); copy it anew, or unpack what can be unpacked"
                raise NoTextError(message) from error
            total += len(text)
            if total > MAX_UNPACKED:
                message = f"it unpacks to more than {MAX_UNPACKED >> 30} GiB; unpack it, and name the part to be read"
                raise NoTextError(message)
            if text:
                yield text
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                data = unpacker.unused_data.lstrip(b"\0")
                unpacker = zlib.decompressobj(_ZLIB_GZIP)


def _recoded(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for piece in pieces:
        yield decoder.decode(piece).lstrip("\ufeff").encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _is_binary(head: bytes) -> bool:
    """Whether `head` is no text. Zeros before it do not count: a log that was cut in use begins with a hole."""
    text = head.lstrip(b"\0")
    return len(text) - len(text.translate(None, _CONTROLS)) > max(8, len(text) * _BINARY_SHARE)
