"""Which names mark a secret: strictly for options of vLLM, and with regard to what vLLM prints for names in its log."""

import re

from vllm_supervisor.domain.secret import is_secret_name

_NO_OPTION = ("tokenizer", "tokens", "token-ids", "token-threshold", "keyfile")
"""Parts of vLLM's own flags that match the marks of a secret and are none: `--max-num-batched-tokens`."""
_ALWAYS = ("password", "passwd", "passphrase", "secret")
"""Not `--ssl-keyfile-password`, though."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_COMPOUND = re.compile(r"(?:api|access|secret|private|auth|account|shared|hf|hub)(?:key|token)s?\Z")
_OWNERS = frozenset({"api", "access", "secret", "private", "auth", "bearer", "refresh", "hf", "hub"})
"""What makes secrets of `keys` and `tokens`."""
_KEY_BEFORE = _words(
    """
    cache sort hash dict missing unexpected block config layer weight weights invalid unknown query primary group
    lookup state param metric label attention
    """
)
_KEY_AFTER = frozenset({"", "id", "data", "hex", "base", "pem", "string"})
"""What may follow `key` in a secret's name: `key_lines` is none, `aws_access_key_id` and `key_base64` are."""
_TOKEN_BEFORE = _words(
    """
    eos bos pad unk sep cls mask image video audio stop special start end think thinking next first last per max
    min num draft sampled prompt output single each decode prefill multi placeholder unexpected invalid unknown
    bad added normal reasoning tool call
    """
)
_TOKEN_AFTER = _words(
    """
    id ids type types count counts embedding embeddings embed index indices budget threshold limit num pos
    position positions len length rate ratio per level wise parallel weight mask shape parser error usage
    throughput
    """
)


def option_names_secret(name: str) -> bool:
    """Say whether an option's value is a secret: as `is_secret_name`, without vLLM's own flags about tokens."""
    option = name.lower().replace("_", "-")
    if any(part in option for part in _ALWAYS):
        return True
    return is_secret_name(name) and not any(part in option for part in _NO_OPTION)


def names_secret_in_text(name: str, *, in_prose: bool) -> bool:
    """Say whether what a log assigns to `name` is a secret. `in_prose`: by a colon after a bare word, as in a sentence.

    A variable in capitals counts as everywhere. Other names are read word by word.
    """
    bare = name.strip("-_")
    words = [word.lower() for word in _WORD.findall(bare)]
    if len(words) == 1 and words[0] in {"key", "keys", "tokens", "pass"}:
        return False
    if words in (["token"], ["secrets"], ["credentials"]):
        return not in_prose
    if bare.isupper():
        return is_secret_name(bare) and not any(word in {"tokens", "tokenizer", "tokenizers"} for word in words)
    return any(_word_marks(words, at) for at in range(len(words)))


def _word_marks(words: list[str], at: int) -> bool:
    word = words[at]
    before = words[at - 1] if at else ""
    after = words[at + 1] if at + 1 < len(words) else ""
    if word in {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "pwd"}:
        return after not in {"file", "path"}
    if _COMPOUND.search(word):
        return True
    if word == "pass":
        return at > 0 and not after and before != "by"
    if word == "connection":
        return after == "string"
    if word in {"keys", "tokens"}:
        return before in _OWNERS
    if word == "key":
        return before not in _KEY_BEFORE and after in _KEY_AFTER
    return word == "token" and before not in _TOKEN_BEFORE and after not in _TOKEN_AFTER
