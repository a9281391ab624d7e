"""The values of a configuration as digests: enough to tell which of them differ, and nothing that could be read."""

import hashlib
from collections.abc import Iterator

from pydantic import SecretStr

from vllm_supervisor.config.cross import effective_flags
from vllm_supervisor.config.settings import Settings


def digests(settings: Settings) -> dict[str, str]:
    """Return dotted key -> digest of its value. That of `extra_args` changes with a `--config` file that it names."""
    found = dict(_digests("", settings.model_dump()))
    named = [(name, flag.values) for name, flag in effective_flags(settings).items() if flag.file is not None]
    if named:
        found["engine.vllm.extra_args"] = _digest((settings.engine.vllm.extra_args, named))
    return found


def _digests(key: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, digest) for each value; the entries of a mapping are values of their own."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _digests(f"{key}.{name}" if key else str(name), item)
    else:
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value
        yield key, _digest(plain)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogateescape")).hexdigest()
