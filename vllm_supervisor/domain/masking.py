"""Takes secrets out of what is shown: commands, environments, and any text that may quote them."""

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

from vllm_supervisor.domain.naming import option_names_secret
from vllm_supervisor.domain.redaction import redacted, secrets_in
from vllm_supervisor.domain.secret import MASK, is_secret_name
from vllm_supervisor.domain.spec import LaunchSpec

_MIN_SECRET = 4
"""Shorter values are not searched for inside others: masking every `1` would hide everything."""

_MIN_INSIDE = 8
"""Shorter values than this, that the configuration does not declare as secret, are searched for as whole words."""

_PLAIN_WORDS = frozenset({"none", "null", "true", "false", "auto", "empty", "dummy", "test", "default"})
"""What people give where a key is asked for and none is needed: hiding it would blank words of English."""


class Mask:
    """Knows the secrets of one launch. `secrets` are those that the configuration took from elsewhere, in the clear."""

    def __init__(self, spec: LaunchSpec, secrets: Iterable[str] = ()) -> None:
        self._spec = spec
        declared = {*secrets, *spec.secrets, spec.env.get("VLLM_API_KEY", "")}
        self._declared = _longest_first(_forms(value for value in declared if len(value) >= _MIN_SECRET))
        met = _forms({*_given(spec.argv), *_in_environment(spec)} - declared)
        inside = {value for value in met if len(value) >= _MIN_INSIDE and value.lower() not in _PLAIN_WORDS}
        self._inside = _longest_first({*self._declared, *inside})
        self._words = _whole_words(value for value in met - inside if value.lower() not in _PLAIN_WORDS)

    def argv(self) -> tuple[str, ...]:
        """Return the command: what follows a secret's name, and every known secret, as `***`."""
        shown: list[str] = []
        after_name = False
        for word in self._spec.argv:
            name, equals, _ = word.partition("=")
            after_name = after_name and not word.startswith("--")
            if after_name:
                shown.append(MASK)
                continue
            named = word.startswith("-") and option_names_secret(name)
            shown.append(f"{name}={MASK}" if named and equals else self.value(word))
            after_name = named and not equals
        return tuple(shown)

    def env(self) -> dict[str, str]:
        """Return the environment, sorted by name."""
        items = sorted(self._spec.env.items())
        return {name: MASK if is_secret_name(name) else self.value(value) for name, value in items}

    def value(self, text: str) -> str:
        """Return a word of the configuration without the secrets in it."""
        return redacted(_replaced(text, self._declared))

    def text(self, text: str) -> str:
        """Return text from anywhere (a log, a command line) without anything that is a secret or looks like one."""
        text = _replaced(text, self._inside)
        return redacted(text if self._words is None else self._words.sub(MASK, text))


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    # A secret within another would leave the rest of the longer one to be read.
    return tuple(sorted(values, key=len, reverse=True))


def _replaced(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, MASK)
    return text


def _whole_words(values: Iterable[str]) -> re.Pattern[str] | None:
    words = "|".join(re.escape(value) for value in _longest_first(values) if len(value) >= _MIN_SECRET)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None


def _forms(values: Iterable[str]) -> set[str]:
    """Return the values, and as they stand in a URL, in JSON and in Python's words."""
    forms = set()
    for value in values:
        in_url = {quote(value), quote(value, safe=""), quote_plus(value), unquote(value)}
        lowered = {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), text) for text in in_url}
        quoted = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        forms |= {value} | in_url | lowered | quoted | {json.dumps(text)[1:-1] for text in quoted}
    return forms


def _given(argv: Iterable[str]) -> Iterator[str]:
    """Yield what the command gives to options whose names mark secrets, and what secrets stand within its words."""
    after_name = False
    for word in argv:
        name, equals, value = word.partition("=")
        after_name = after_name and not word.startswith("--")
        if after_name:
            yield word
            continue
        named = word.startswith("-") and option_names_secret(name)
        yield from [value] if named and equals else secrets_in(word)
        after_name = named and not equals


def _in_environment(spec: LaunchSpec) -> Iterator[str]:
    for name, value in spec.env.items():
        if not is_secret_name(name):
            yield from secrets_in(value)
        # `XKB_KEYMAP=none` must not blank a word of English.
        elif len(value) >= _MIN_INSIDE or not value.isalpha():
            yield value
