"""The section `engine.vllm`. Each description completes the sentence "give …", and is shown when a value is refused."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from vllm_supervisor.config.scalars import (
    AnyText,
    ApiKey,
    Count,
    Host,
    Keep,
    Lower,
    OptionalSeconds,
    OptionalText,
    Port,
    PositiveSeconds,
    Seconds,
    Size,
    Text,
    Words,
    refuse,
    refuse_shown,
)

DEFAULT_LOG_FILE = "~/.microdc/vllm.log"


def _launcher(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0].strip():
        refuse("is empty")
    return value


def _model(value: str) -> str:
    if value.startswith("-"):
        refuse_shown("would be read as an option")
    if value.splitlines() != [value]:
        refuse_shown("holds a line break", "give one line, without | or > in front")
    return value


def _http_path(value: str) -> str:
    if not value.startswith("/"):
        refuse_shown("is not a path")
    if not value.isascii() or " " in value:
        refuse_shown("holds a space or a character beyond ASCII", "write it as %XX, as in a URL")
    if not value.isprintable():
        refuse_shown("holds a control character", "remove it")
    return value


class Section(BaseModel):
    """A part of the configuration: immutable, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class LogSettings(Section):
    """Rotation of vLLM's log."""

    max_bytes: Size = Field(default=100_000_000, description="a size in bytes, or such as 100 MB or 1 GiB")
    keep: Keep = Field(default=5, description="how many rotated files to keep, 0 to 1000")


class RestartSettings(Section):
    """What follows an exit that nobody asked for."""

    enabled: bool = Field(default=True, description="true or false")
    min_backoff: PositiveSeconds = Field(default=1.0, description="seconds above 0")
    max_backoff: PositiveSeconds = Field(default=60.0, description="seconds above 0, at least min_backoff")
    healthy_reset: Seconds = Field(default=600.0, description="seconds")
    never_ready_limit: Count = Field(default=5, description="a number of starts, 1 or more")
    retry_failed_every: Seconds = Field(default=0.0, description="seconds, or 0 for never")
    exit_when_failed: bool = Field(default=False, description="true or false")


class StartupSettings(Section):
    """How long a start may take."""

    stall_timeout: PositiveSeconds = Field(default=900.0, description="seconds above 0")
    timeout: OptionalSeconds = Field(default=None, description="seconds above 0, or none for no limit")
    warmup: bool = Field(default=True, description="true or false")


class ProbeSettings(Section):
    """The health probe once ready."""

    interval: PositiveSeconds = Field(default=5.0, description="seconds above 0")
    timeout: PositiveSeconds = Field(default=10.0, description="seconds above 0")
    failure_threshold: Count = Field(default=3, description="a number of failures in a row, 1 or more")
    restart_after: Seconds = Field(default=30.0, description="seconds")


class LivenessSettings(Section):
    """How a stuck engine is found."""

    mode: Annotated[Literal["auto", "completions", "chat", "embeddings", "pooling", "none"], Lower] = Field(
        default="auto", description="auto, completions, chat, embeddings, pooling or none"
    )
    interval: PositiveSeconds = Field(default=30.0, description="seconds above 0")
    timeout: PositiveSeconds = Field(default=120.0, description="seconds above 0")


class StopSettings(Section):
    """How a stop proceeds."""

    drain_timeout: Seconds = Field(default=30.0, description="seconds")
    grace: Seconds = Field(default=30.0, description="seconds")


class VllmSettings(Section):
    """One `vllm serve`."""

    launcher: Annotated[Words, AfterValidator(_launcher)] = Field(
        default=("vllm", "serve"), description="the command that stands before the model, such as [vllm, serve]"
    )
    model: Annotated[Text, AfterValidator(_model)] = Field(
        description="a model's name or folder, such as openai/gpt-oss-20b"
    )
    host: Host = Field(default="127.0.0.1", description="an address to listen on, such as 127.0.0.1")
    port: Port = Field(default=8000, description="a port from 1 to 65535")
    extra_args: Words = Field(default=(), description="vLLM's own flags, such as [--max-model-len, 100000]")
    env: dict[str, AnyText] = Field(default_factory=dict, description="variables, such as {CUDA_HOME: /opt/cuda}")
    cwd: OptionalText = Field(default=None, description="a folder")
    model_aliases: dict[str, AnyText] = Field(
        default_factory=dict,
        description="advertised names and what they stand for, such as {small: openai/gpt-oss-20b}",
    )
    health_path: Annotated[Text, AfterValidator(_http_path)] = Field(
        default="/health", description="a path that begins with /"
    )
    log_file: Text = Field(default=DEFAULT_LOG_FILE, description="a file, or journal")
    log: LogSettings = Field(default_factory=LogSettings, description="a mapping")
    concurrency: Count = Field(default=5, description="a number of requests, 1 or more")
    api_key: ApiKey = Field(default=None, description="a key, or NONE", validate_default=False)
    timeout: PositiveSeconds = Field(default=600.0, description="seconds above 0")
    restart: RestartSettings = Field(default_factory=RestartSettings, description="a mapping")
    startup: StartupSettings = Field(default_factory=StartupSettings, description="a mapping")
    probe: ProbeSettings = Field(default_factory=ProbeSettings, description="a mapping")
    liveness: LivenessSettings = Field(default_factory=LivenessSettings, description="a mapping")
    stop: StopSettings = Field(default_factory=StopSettings, description="a mapping")
