"""Read a configuration: all of it or none, and every problem at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor.config import cross, layers, validate, yamlfile
from vllm_supervisor.config.settings import Settings
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.errors import ConfigError, Problem

DEFAULT_PATH = Path("/etc/vllm-supervisor/config.yaml")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, and what is worth saying about it."""

    settings: Settings
    warnings: tuple[str, ...]
    path: Path
    secrets: tuple[Secret, ...] = ()
    """Credentials and secret variables that went into any value: masked wherever values are shown."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> `FILE:LINE`, `--set` or a variable's name, for the values that were given."""

    def place(self, key: str) -> str:
        """Return where `key` was given; the file, where its default holds."""
        return self.places.get(key, str(self.path))


def load(path: Path, *, sets: Sequence[str] = (), environ: Mapping[str, str]) -> Loaded:
    """Read `path` with `sets` (`KEY=VALUE`) and `environ` over it.

    Raises ConfigError with all problems. Nothing is made or changed; besides the file, the credentials and a `--config`
    file among vLLM's flags are read.
    """
    document = yamlfile.read(path)
    if document.problems and not document.data:
        raise ConfigError(_in_order(document.problems))
    layered = layers.build(document, sets, environ)
    settings, refused = validate.validate(layered)
    warnings = cross.check(settings, layered, environ, refused) if settings is not None else []
    if layered.problems or settings is None:
        raise ConfigError(_in_order(layered.problems))
    places = {yamlfile.dotted(loc): place for loc, place in layered.origins.items()}
    return Loaded(
        settings, tuple(str(warning) for warning in _in_order(warnings)), path, tuple(layered.secrets), places
    )


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort by place, so that they are read along with the file."""

    def place(problem: Problem) -> tuple[str, int]:
        name, _, line = problem.where.rpartition(":")
        return (name, int(line)) if line.isdigit() else (problem.where, 0)

    return tuple(_one_line(problem) for problem in sorted(dict.fromkeys(problems), key=place))


def _one_line(problem: Problem) -> Problem:
    """Escape what would break a line or a terminal: keys and values come from the file as they are."""

    def plain(text: str) -> str:
        return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)

    return Problem(plain(problem.where), plain(problem.key), plain(problem.why), plain(problem.remedy))
