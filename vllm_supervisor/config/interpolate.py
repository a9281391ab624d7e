"""`${NAME}`, `${NAME:-default}`, `${credential:NAME}` and `$$` in strings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor.domain.secret import is_secret_name

Credentials = Callable[[str], str]
"""Returns a credential's text; raises LookupError, with the reason for the operator, when there is none."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = "credential:"
_MAX_DEPTH = 10


@dataclass(slots=True)
class Expansion:
    """A string with its references filled in, and what could not be: pairs of why and remedy."""

    text: str = ""
    problems: list[tuple[str, str]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    """What went into it from credentials and from variables whose names mark secrets."""


def expand(text: str, environ: Mapping[str, str], credential: Credentials) -> Expansion:
    """Fill in references. What is filled in is not looked at again, so that a `$` in a password is safe."""
    done = Expansion()
    done.text = _expand(text, environ, credential, done, _MAX_DEPTH) if "$" in text else text
    return done


def _expand(text: str, environ: Mapping[str, str], credential: Credentials, done: Expansion, depth: int) -> str:
    if depth == 0:
        done.problems.append(("has defaults nested too deeply", f"nest at most {_MAX_DEPTH}"))
        return ""
    out: list[str] = []
    at = 0
    while (dollar := text.find("$", at)) >= 0:
        out.append(text[at:dollar])
        at = dollar + 1
        if text.startswith("$", at):
            out.append("$")
            at += 1
        elif text.startswith("{", at) and (end := _closing(text, at)) is not None:
            value = _reference(text[at + 1 : end], environ, credential, done, depth)
            out.append(text[dollar : end + 1] if value is None else value)
            at = end + 1
        else:
            out.append("$")
    out.append(text[at:])
    return "".join(out)


def _closing(text: str, opening: int) -> int | None:
    """Return the index of the brace that closes the one at `opening`; defaults may hold braces, in pairs."""
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    return None


def _reference(
    body: str, environ: Mapping[str, str], credential: Credentials, done: Expansion, depth: int
) -> str | None:
    """Return what `${body}` stands for; None when it is no reference of ours and stays as it is."""
    if body.startswith(_CREDENTIAL):
        try:
            secret = credential(body.removeprefix(_CREDENTIAL))
        except LookupError as error:
            remedy = (
                "add LoadCredential= to the unit, then `systemctl daemon-reload` and `systemctl restart` (systemd "
                "hands credentials over at the start only), or set the value another way"
            )
            done.problems.append((f"${{{body}}}: {error.args[0]}", remedy))
            return ""
        done.secrets.append(secret)
        return secret
    match = _NAME.match(body)
    if match is None:
        return None
    name, rest = match.group(), body[match.end() :]
    value = environ.get(name)
    if rest == "":
        if value is None:
            remedy = f"set {name}, or write ${{{name}:-default}}"
            done.problems.append((f"${{{name}}} is not set in the environment", remedy))
            return ""
        return _noted(name, value, done)
    if not rest.startswith(":-"):
        return None
    if value:
        return _noted(name, value, done)
    return _expand(rest.removeprefix(":-"), environ, credential, done, depth - 1)


def _noted(name: str, value: str, done: Expansion) -> str:
    if value and is_secret_name(name):
        done.secrets.append(value)
    return value


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Return a reader of systemd credentials: files in `$CREDENTIALS_DIRECTORY`, less a trailing newline."""

    def read(name: str) -> str:
        directory = environ.get("CREDENTIALS_DIRECTORY")
        if not directory:
            raise LookupError("CREDENTIALS_DIRECTORY is not set")
        if not name or "/" in name or name in {".", ".."} or "\0" in name:
            raise LookupError("is not the name of a credential")
        try:
            secret = Path(directory, name).read_text(encoding="utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise LookupError("the credential is not UTF-8") from None
        except OSError as error:
            raise LookupError(f"the credential cannot be read: {error.strerror}") from None
        if not secret.strip():
            raise LookupError("the credential is empty")
        return secret

    return read
