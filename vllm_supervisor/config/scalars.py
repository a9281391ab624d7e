"""The kinds of value that a configuration holds, each with what it accepts.

A refusal carries why (without the value where that may be a secret) and, where the field's own description is not
enough, a remedy.
"""

import grp
import ipaddress
import math
import pwd
import re
import shlex
from typing import Annotated, NoReturn, TypeVar

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

MAX_SECONDS = 1e9
"""About 31 years. Larger numbers overflow the kernel's timers, which then fire at once."""

T = TypeVar("T")

_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?|\.\d{1,20})\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_FACTORS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_QUOTE = "put it in quotes if it is meant as text"


def refuse(why: str, remedy: str | None = None) -> NoReturn:
    """Refuse a value, from inside a validator, without repeating it: `is empty`."""
    raise PydanticCustomError("refused", "{why}", {"why": why, "remedy": remedy})


def refuse_shown(why: str, remedy: str | None = None) -> NoReturn:
    """Refuse a value; whoever tells the user puts it in front, unless it may be a secret: `'x' is not a size`."""
    raise PydanticCustomError("refused_shown", "{why}", {"why": why, "remedy": remedy})


def _number(value: object) -> object:
    # Python takes True for 1, and so would pydantic: `port: yes` must not mean port 1.
    if isinstance(value, bool):
        refuse("is true or false, not a number")
    return value


def _finite(value: object) -> object:
    text = value.strip().lstrip("+-").lower() if isinstance(value, str) else ""
    if text in {"nan", "inf", "infinity"} or (isinstance(value, float) and not math.isfinite(value)):
        refuse_shown("is not a finite number")
    return _number(value)


def _none_when_empty(value: object) -> object:
    """Let `${NAME:-}` and `none` leave an optional value unset."""
    return None if isinstance(value, str) and value.strip().lower() in {"", "none"} else value


def text_of(value: object) -> str:
    """Return a scalar as it was written; refuse anything that has no single spelling."""
    if isinstance(value, bool):
        refuse("is true or false in YAML, not text", _QUOTE)
    if isinstance(value, int | float):
        return str(getattr(value, "text", value))
    if not isinstance(value, str):
        refuse("is empty, not text" if value is None else "is not text", _QUOTE)
    return _without_nul(value)


def _without_nul(value: T) -> T:
    """Refuse a text that no system call would take."""
    if isinstance(value, str) and "\0" in value:
        refuse("holds a NUL character", "remove it")
    return value


def _words(value: object) -> object:
    if not isinstance(value, str):
        if not isinstance(value, list | tuple):
            refuse("is neither a list nor a string")
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        refuse(f"cannot be split into words: {str(error).lower()}", "balance the quotes, or write a list")


def _filled(value: str) -> str:
    if not value.strip():
        refuse("is empty")
    return value


def _size(value: object) -> object:
    if not isinstance(value, str):
        return _number(value)
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        refuse_shown("is not a size")
    number, factor, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _FACTORS[factor.lower()])


def _octal(value: object) -> int:
    text = text_of(value).strip().lower().removeprefix("0o")
    if not re.fullmatch(r"0*[0-7]{1,3}", text):
        refuse_shown("is not a file mode")
    return int(text, 8)


def _key(value: object) -> SecretStr | None:
    """Read a key that goes into an HTTP header. Never repeats the value."""
    if isinstance(value, SecretStr):
        return value
    if value is None or value == "":
        refuse("is empty", "write NONE for an engine without a key")
    text = text_of(value)
    if text.upper() == "NONE":
        return None
    if not text.isascii() or not text.isprintable() or " " in text:
        refuse("holds a character that an HTTP header cannot carry", "use printable ASCII without spaces")
    return SecretStr(text)


def _uid(value: object) -> int:
    text = text_of(value)
    if re.fullmatch(r"[0-9]{1,20}", text):
        number = int(text)
        return number if number < 1 << 32 else refuse_shown("is no user id")
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, UnicodeError):
        refuse_shown("is no user of this host", "name a user that exists, or give a numeric user id")


def _gid(value: object) -> int | None:
    if value is None:
        return None
    text = text_of(value)
    if re.fullmatch(r"[0-9]{1,20}", text):
        number = int(text)
        return number if number < 1 << 32 else refuse_shown("is no group id")
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, UnicodeError):
        refuse_shown("is no group of this host", "name a group that exists, or give a numeric group id")


def _host(value: object) -> str:
    text = text_of(value).strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if not text:
        refuse("is empty")
    if re.search(r"[\s/\[\]@]", text):
        refuse_shown("is not an address or a host name", "give only the address, without scheme, path or port")
    if re.fullmatch(r"[^:]*:\d*", text):
        refuse_shown("is an address with a port", "give only the address: the port goes into the key `port` beside it")
    if ":" in text and not _is_address(ipaddress.IPv6Address, text):
        refuse_shown("is not an IPv6 address", "give only the address, such as ::1")
    if re.fullmatch(r"[\d.]+", text) and not _is_address(ipaddress.IPv4Address, text):
        refuse_shown("is not an IPv4 address", "give four numbers from 0 to 255, such as 127.0.0.1")
    return text


def _is_address(kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _items(value: object) -> object:
    """Let a list of names be given as one string, as environment variables do it."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(lambda value: _filled(text_of(value)))]
AnyText = Annotated[str, BeforeValidator(text_of)]
OptionalText = Annotated[str | None, BeforeValidator(_without_nul), BeforeValidator(_none_when_empty)]
Words = Annotated[tuple[AnyText, ...], BeforeValidator(_words)]
Names = BeforeValidator(_items)
Seconds = Annotated[float, BeforeValidator(_finite), Field(ge=0, le=MAX_SECONDS)]
PositiveSeconds = Annotated[float, BeforeValidator(_finite), Field(gt=0, le=MAX_SECONDS)]
OptionalSeconds = Annotated[PositiveSeconds | None, BeforeValidator(_none_when_empty)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=1_000_000)]
Keep = Annotated[int, BeforeValidator(_number), Field(ge=0, le=1000)]
OptionalCount = Annotated[Count | None, BeforeValidator(_none_when_empty)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1, le=1 << 50)]
Port = Annotated[int, BeforeValidator(_number), Field(ge=1, le=65535)]
PortOrAny = Annotated[int, BeforeValidator(_number), Field(ge=0, le=65535)]
Host = Annotated[str, BeforeValidator(_host)]
Mode = Annotated[int, BeforeValidator(_octal)]
ApiKey = Annotated[SecretStr | None, BeforeValidator(_key)]
# Validators of a kind run from the last to the first.
Uid = Annotated[int, BeforeValidator(_uid)]
Gid = Annotated[int | None, BeforeValidator(_gid), BeforeValidator(_none_when_empty)]
Lower = BeforeValidator(_lower)
