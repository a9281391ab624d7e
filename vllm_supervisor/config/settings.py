"""All that can be configured, validated once and immutable.

Sources are layered in `layers.py`, where each value keeps the file and line, variable or option that it came from;
pydantic-settings gets the result and reads nothing by itself.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from vllm_supervisor.config.engine import Section, VllmSettings
from vllm_supervisor.config.scalars import Gid, Host, Lower, Mode, Names, OptionalCount, OptionalText, PortOrAny, Uid


class ResourcesSettings(Section):
    """The part of a worker's own configuration that bears on the engine."""

    max_concurrent_jobs: OptionalCount = Field(default=None, description="a number of jobs, 1 or more, or none")


class EngineSettings(Section):
    """Which engines there are, and how they run."""

    available: Annotated[tuple[Literal["vllm"], ...], Names, Field(min_length=1)] = Field(
        default=("vllm",), description="[vllm], the only engine there is"
    )
    vllm: VllmSettings = Field(description="a mapping with at least `model`")


class ControlSettings(Section):
    """The control socket, and who may change state through it."""

    socket: OptionalText = Field(default=None, description="the path of a Unix socket")
    mode: Mode = Field(default=0o660, description='a mode in octal, such as "0660"')
    group: Gid = Field(default=None, description="a group's name or id")
    admins: Annotated[tuple[Uid, ...], Names] = Field(default=(), description="a list of user names or ids")


class MetricsSettings(Section):
    """The Prometheus endpoint on TCP."""

    enabled: bool = Field(default=True, description="true or false")
    host: Host = Field(default="127.0.0.1", description="an address to listen on, such as 127.0.0.1")
    port: PortOrAny = Field(default=9455, description="a port from 1 to 65535, or 0 for any free one")


class LoggingSettings(Section):
    """The daemon's own log."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Lower] = Field(
        default="info", description="debug, info, warning or error"
    )
    format: Annotated[Literal["auto", "json", "console"], Lower] = Field(
        default="auto", description="auto, json or console"
    )


class SystemdSettings(Section):
    """What systemd is told."""

    ready_when: Annotated[Literal["daemon", "engine"], Lower] = Field(default="daemon", description="daemon or engine")


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    engine: EngineSettings = Field(description="a mapping with `vllm`")
    resources: ResourcesSettings = Field(default_factory=ResourcesSettings, description="a mapping")
    control: ControlSettings = Field(default_factory=ControlSettings, description="a mapping")
    metrics: MetricsSettings = Field(default_factory=MetricsSettings, description="a mapping")
    logging: LoggingSettings = Field(default_factory=LoggingSettings, description="a mapping")
    systemd: SystemdSettings = Field(default_factory=SystemdSettings, description="a mapping")
    state_dir: OptionalText = Field(default=None, description="a folder")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the layered values alone: pydantic-settings' own sources would lose where a value came from."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @property
    def concurrency(self) -> int:
        """The concurrency that is advertised: the lower of the engine's and the worker's."""
        cap = self.resources.max_concurrent_jobs
        own = self.engine.vllm.concurrency
        return own if cap is None else min(own, cap)
