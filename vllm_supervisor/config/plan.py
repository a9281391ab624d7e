"""All that a daemon needs to know of its configuration, as plain values.

Reading a configuration takes pydantic and PyYAML, 14 MiB that a daemon needs for a moment and would keep for ever
(measured, CPython 3.11), so it is read by a process of its own (`config.reading`), which hands over a plan. That also
keeps whatever a strange file may do to a parser away from the one process that must not end.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vllm_supervisor.domain.liveness import Limits
from vllm_supervisor.domain.model import Policy
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.domain.setting import Setting
from vllm_supervisor.domain.spec import EngineSpec, LaunchSpec


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """The control socket: where, its mode and group, and the uids that may change state beside root and our own."""

    path: str
    mode: int
    group: int | None
    admins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MetricsPlan:
    """The metrics listener on TCP."""

    enabled: bool
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LoggingPlan:
    """The daemon's own log."""

    level: str
    format: str


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The rotation of vLLM's log: at this many bytes, keeping so many older files."""

    max_bytes: int
    keep: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid configuration, ready for use. Holds secrets in the clear inside `launch`: never shown as a whole."""

    policy: Policy
    liveness: Limits
    launch: LaunchSpec
    engine: EngineSpec
    control: ControlPlan
    metrics: MetricsPlan
    logging: LoggingPlan
    log: LogPlan
    state_dir: str
    ready_when: str
    warnings: tuple[str, ...]
    advice: Setting = field(default_factory=Setting)
    """What is known of the load and its caps."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Dotted key -> digest of its value, to tell what a new configuration changes. No value can be read from it."""


def encode(plan: Plan) -> dict[str, Any]:
    """Return `plan` as JSON's types, secrets included: for the pipe between two processes of ours, and nothing else."""
    key = plan.engine.api_key
    plain = asdict(replace(plan, engine=replace(plan.engine, api_key=None)))
    plain["engine"]["api_key"] = key.reveal() if key else None
    return plain


def decode(plain: Mapping[str, Any]) -> Plan:
    """Return the plan that `encode` was given."""
    key, launch = plain["engine"]["api_key"], plain["launch"]
    return Plan(
        policy=Policy(**plain["policy"]),
        liveness=Limits(**plain["liveness"]),
        launch=LaunchSpec(**{**launch, "argv": tuple(launch["argv"]), "secrets": tuple(launch["secrets"])}),
        engine=EngineSpec(**{**plain["engine"], "api_key": Secret(key) if key else None}),
        control=ControlPlan(**{**plain["control"], "admins": tuple(plain["control"]["admins"])}),
        metrics=MetricsPlan(**plain["metrics"]),
        logging=LoggingPlan(**plain["logging"]),
        log=LogPlan(**plain["log"]),
        state_dir=plain["state_dir"],
        ready_when=plain["ready_when"],
        warnings=tuple(plain["warnings"]),
        advice=Setting(**plain["advice"]),
        values=plain["values"],
    )
