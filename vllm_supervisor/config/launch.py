"""From settings to what the rest of the house works with: numbers, a command, an address."""

import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path

from vllm_supervisor.config.cross import effective_flags, vllm_flags
from vllm_supervisor.config.settings import Settings
from vllm_supervisor.domain.liveness import Limits
from vllm_supervisor.domain.masking import Mask
from vllm_supervisor.domain.model import Policy
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.domain.setting import Setting
from vllm_supervisor.domain.spec import JOURNAL, EngineSpec, LaunchSpec

# vLLM complains of VLLM_* names that it does not know; the others are the daemon's own dealings with systemd, and an
# engine that used them would speak in the daemon's name.
_OURS = frozenset(
    {
        "NOTIFY_SOCKET",
        "CREDENTIALS_DIRECTORY",
        "RUNTIME_DIRECTORY",
        "STATE_DIRECTORY",
        "LOGS_DIRECTORY",
        "CACHE_DIRECTORY",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        # The shipped unit's own, for `log_file`: vLLM warns of every VLLM_ name that it does not know.
        "VLLM_LOG_FILE",
    }
)
_OUR_PREFIXES = ("VLLM_SUPERVISOR__", "WATCHDOG_", "LISTEN_")
_DIGITS = 15
"""Of a number of requests or tokens; a longer one is vLLM's to refuse."""
_ENGINE_READY_TIMEOUT = "86400"
"""Seconds, a day. vLLM hands milliseconds to zmq_poll, which takes no more than 24 days."""


def policy(settings: Settings) -> Policy:
    """Return the numbers that decide."""
    vllm = settings.engine.vllm
    return Policy(
        restart_enabled=vllm.restart.enabled,
        min_backoff=vllm.restart.min_backoff,
        max_backoff=vllm.restart.max_backoff,
        healthy_reset=vllm.restart.healthy_reset,
        never_ready_limit=vllm.restart.never_ready_limit,
        retry_failed_every=vllm.restart.retry_failed_every,
        exit_when_failed=vllm.restart.exit_when_failed,
        startup_timeout=vllm.startup.timeout,
        stall_timeout=vllm.startup.stall_timeout,
        probe_interval=vllm.probe.interval,
        failure_threshold=vllm.probe.failure_threshold,
        restart_after=vllm.probe.restart_after,
        drain_timeout=vllm.stop.drain_timeout,
        stop_grace=vllm.stop.grace,
    )


def liveness(settings: Settings) -> Limits:
    """Return how a stuck engine is found."""
    section = settings.engine.vllm.liveness
    return Limits(mode=section.mode, interval=section.interval, timeout=section.timeout)


def advice(settings: Settings) -> Setting:
    """Return what is known of the load before there is any: what clients are told, and what caps it on the way."""
    vllm = settings.engine.vllm
    flags = effective_flags(settings)

    def number(name: str) -> int | None:
        text = flags[name].first if name in flags else ""
        return int(text) if text.isdecimal() and len(text) <= _DIGITS and int(text) > 0 else None

    return Setting(
        concurrency=settings.concurrency,
        configured=vllm.concurrency,
        max_concurrent_jobs=settings.resources.max_concurrent_jobs,
        max_num_seqs=number("max-num-seqs"),
        max_model_len=number("max-model-len"),
        kv_cache_dtype=flags["kv-cache-dtype"].first if "kv-cache-dtype" in flags else None,
        max_num_batched_tokens=number("max-num-batched-tokens"),
    )


def launch_spec(settings: Settings, environ: Mapping[str, str], secrets: Iterable[Secret] = ()) -> LaunchSpec:
    """Return how vLLM is launched by a daemon whose environment is `environ`.

    `log_file` may also be `journal`. The marker of a generation is added by whoever launches it.
    """
    vllm = settings.engine.vllm
    flags = vllm_flags(settings)
    argv = (*vllm.launcher, vllm.model, "--host", vllm.host, "--port", str(vllm.port), *vllm.extra_args)
    env = {name: value for name, value in environ.items() if name not in _OURS and not name.startswith(_OUR_PREFIXES)}
    # setproctitle, which vLLM uses, erases /proc/PID/environ, and with it the marker, unless told not to.
    env.setdefault("SPT_NOENV", "1")
    # vLLM 0.12 and later give up on a start after 600 s, however well it moves (core_client.py). Whether it moves is
    # ours to judge.
    env.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", _ENGINE_READY_TIMEOUT)
    env |= vllm.env
    if vllm.api_key is not None:
        env["VLLM_API_KEY"] = vllm.api_key.get_secret_value()
    return LaunchSpec(
        argv=argv,
        env=env,
        cwd=str(Path(vllm.cwd).absolute()) if vllm.cwd else None,
        log_file=vllm.log_file if vllm.log_file == JOURNAL else str(Path(vllm.log_file).absolute()),
        host=vllm.host,
        port=vllm.port,
        secrets=tuple(secret.reveal() for secret in secrets),
        model=vllm.model,
        revision=flags.revision,
        download_dir=flags.download_dir,
    )


def engine_spec(settings: Settings) -> EngineSpec:
    """Return how the engine is asked, and what it is advertised as."""
    vllm = settings.engine.vllm
    flags = vllm_flags(settings)
    return EngineSpec(
        base_url=f"{'https' if flags.tls else 'http'}://{_reachable(vllm.host)}:{vllm.port}",
        health_path=vllm.health_path,
        model=flags.served_names[0] if flags.served_names else vllm.model,
        aliases=dict(vllm.model_aliases),
        api_key=Secret(vllm.api_key.get_secret_value()) if vllm.api_key else None,
        warmup=vllm.startup.warmup,
        probe_timeout=vllm.probe.timeout,
        concurrency=settings.concurrency,
        timeout=vllm.timeout,
        revision=flags.revision,
        canary=vllm.liveness.mode,
    )


def _reachable(host: str) -> str:
    """Return the address to connect to, for one that is listened on, as it stands in a URL."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"  # noqa: PLR2004 - the version of IP
    return host if address.version == 4 else f"[{host}]"  # noqa: PLR2004 - the version of IP


def masked_argv(spec: LaunchSpec, secrets: Iterable[Secret] = ()) -> tuple[str, ...]:
    """Return the command as it may be shown: what follows a secret's name, and every known secret, as `***`."""
    return _mask(spec, secrets).argv()


def added_env(spec: LaunchSpec, environ: Mapping[str, str], secrets: Iterable[Secret] = ()) -> dict[str, str]:
    """Return the variables that vLLM gets and the daemon does not have so, secrets as `***`, sorted."""
    shown = _mask(spec, secrets).env()
    return {name: value for name, value in shown.items() if environ.get(name) != spec.env[name]}


def _mask(spec: LaunchSpec, secrets: Iterable[Secret]) -> Mask:
    return Mask(spec, [secret.reveal() for secret in secrets])
