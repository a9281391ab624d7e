"""What to launch, and how the launched is reached: plain facts made from the configuration, once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_supervisor.domain.secret import Secret

MARKER = "SUPERVISED_ENGINE"
"""Environment variable that marks every member of a generation. Must not begin with VLLM_: vLLM complains of those."""

JOURNAL = "journal"
"""The `log_file` that means the journal."""


def begin_mark(generation: int) -> str:
    """Return the line, or how it begins, after which a generation's part of the log begins."""
    return f"[vllm-supervisor] generation {generation} is launched"


def journal_mark(generation: int, instance: str) -> str:
    """Return the first line of a generation in the journal, which no other one has: many may share a journal."""
    return f"{begin_mark(generation)} by instance {instance}"


def end_mark(generation: int) -> str:
    """Return the line after which nothing of a generation comes in the journal."""
    return f"[vllm-supervisor] generation {generation} is gone"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How `vllm serve` is launched.

    `argv[0]` is as configured, to be looked up on the PATH of `env`. `env` is complete and holds secrets in the clear:
    it is never shown; `log_file` is absolute, or JOURNAL. `host` and `port` are those that vLLM is told to bind.
    `secrets` are what the configuration took from credentials and secret variables, in the clear: to be masked.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None
    log_file: str
    host: str
    port: int
    secrets: tuple[str, ...] = field(default=(), repr=False)
    model: str = ""
    """The positional argument: a name on the hub, or a folder."""
    revision: str | None = None
    download_dir: str | None = None
    """`--download-dir`: where vLLM keeps weights instead of the hub's cache."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How the engine is asked, and what it is advertised as.

    `base_url` is what clients use, without a path: `http://127.0.0.1:8000`. `model` is the served name that
    `/v1/models` has to list; `aliases` map advertised names to served ones. `timeout` is advertised, seconds.
    """

    base_url: str
    health_path: str
    model: str
    aliases: Mapping[str, str]
    api_key: Secret | None
    warmup: bool
    probe_timeout: float
    concurrency: int
    timeout: float
    revision: str | None = None
    canary: str = "auto"
    """The rung of the warm-up's ladder that a canary takes: its name, `auto` for the one that answered, or `none`."""

    @property
    def port(self) -> int:
        """The port in `base_url`, which always names one."""
        return int(self.base_url.rpartition(":")[2])
