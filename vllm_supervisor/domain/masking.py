"""Takes secrets out of what is shown: commands, environments, and any text that may quote them."""

import re
from collections.abc import Iterable

from vllm_supervisor.domain.secret import MASK, is_secret_name
from vllm_supervisor.domain.spec import LaunchSpec

_NOT_SECRET = ("tokenizer", "tokens", "token-ids", "token-threshold", "keyfile")
"""Parts of vLLM's own flags that match the marks of a secret and are none: `--max-num-batched-tokens`."""

_ALWAYS_SECRET = ("password", "secret")
"""Not `--ssl-keyfile-password`, though."""

_MIN_SECRET = 4
"""Shorter values are not searched for inside others: masking every `1` would hide everything."""

_MIN_NAMED = 8
"""Values known as secret by their variable's name alone: `XKB_KEYMAP=none` must not blank a word of English."""

_LOOKS_SECRET = re.compile(
    r"\b(?:hf_|sk-|api_org_)\w{8,}|(?<=Bearer )[^\s'\"]+|(?<=://)[^/@\s:]*:(?!\*\*\*@)[^/@\s]+(?=@)"
)
"""Tokens by their form, and the credentials of a URL."""
_IN_JSON = re.compile(r'("[^"]*(?:key|token|secret|password)"\s*:\s*)"(?:[^"\\]|\\.)*"', re.IGNORECASE)
"""A secret by its name inside an argument that is JSON."""
_MAY_LOOK_SECRET = ("hf_", "sk-", "api_org_", "Bearer ", "://")
"""What every match holds. A line without it is not searched: a megabyte takes milliseconds, not a third of a second."""


class Mask:
    """Knows the secrets of one launch. `secrets` are those that the configuration took from elsewhere, in the clear."""

    def __init__(self, spec: LaunchSpec, secrets: Iterable[str] = ()) -> None:
        self._spec = spec
        known = {*secrets, *spec.secrets, spec.env.get("VLLM_API_KEY", "")}
        self._known = _longest_first(value for value in known if len(value) >= _MIN_SECRET)
        named = {value for name, value in spec.env.items() if is_secret_name(name)} | set(_option_values(spec.argv))
        self._all = _longest_first({*self._known, *(value for value in named if len(value) >= _MIN_NAMED)})

    def argv(self) -> tuple[str, ...]:
        """Return the command: what follows a secret's name, and every known secret, as `***`."""
        shown: list[str] = []
        after_name = False
        for word in self._spec.argv:
            name, equals, _ = word.partition("=")
            if after_name and not word.startswith("--"):
                shown.append(MASK)
            elif equals and _names_secret(name):
                shown.append(f"{name}={MASK}")
            else:
                shown.append(self.value(word))
            after_name = word.startswith("--") and not equals and _names_secret(word)
        return tuple(shown)

    def env(self) -> dict[str, str]:
        """Return the environment, sorted by name."""
        items = sorted(self._spec.env.items())
        return {name: MASK if is_secret_name(name) else self.value(value) for name, value in items}

    def value(self, text: str) -> str:
        """Return a word of the configuration without the secrets in it."""
        return _LOOKS_SECRET.sub(MASK, _IN_JSON.sub(rf'\1"{MASK}"', _replaced(text, self._known)))

    def text(self, text: str) -> str:
        """Return text from anywhere (a log, a command line) without anything that is a secret or looks like one."""
        lines = _replaced(text, self._all).split("\n")
        return "\n".join(
            _LOOKS_SECRET.sub(MASK, line) if any(mark in line for mark in _MAY_LOOK_SECRET) else line for line in lines
        )


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    # A secret within another would leave the rest of the longer one to be read.
    return tuple(sorted(values, key=len, reverse=True))


def _replaced(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, MASK)
    return text


def _option_values(argv: Iterable[str]) -> Iterable[str]:
    """Return what the command gives to options whose names mark secrets."""
    words = list(argv)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("--") and _names_secret(name):
            yield value if equals else following


def _names_secret(name: str) -> bool:
    option = name.lower().replace("_", "-")
    if any(part in option for part in _ALWAYS_SECRET):
        return True
    return is_secret_name(name) and not any(part in option for part in _NOT_SECRET)
