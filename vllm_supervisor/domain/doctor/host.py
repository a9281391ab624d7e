"""Checks of the host: memory shared between workers, the address, folders, limits, the environment, the clock."""

from collections.abc import Iterator

from vllm_supervisor.domain.doctor.facts import Facts, Limits, Unknown
from vllm_supervisor.domain.doctor.finding import Finding, fail, ok, skip, warn
from vllm_supervisor.domain.units import GIB, gib

_SHM_WANTED, _SHM_LEAST = 16 * GIB, GIB
"""What tensor parallelism is happy with, and what NCCL and vLLM's ring buffers (0.4 GiB measured) do not start with.

Docker gives 64 MB.
"""
_OPEN_FILES = 65_535
"""What vLLM raises its own soft limit to (utils/system_utils.py, set_ulimit)."""
_PROCESSES = 4096
_LOCKED = 64 << 20
_MAX_SOCKET = 107
_UUID = 37
"""vLLM's sockets are named by a slash and a UUID."""
_ELSEWHERE = ("0.0.0.0", "::", "*")  # noqa: S104 - compared with, not bound to
_WRITTEN = 1_767_225_600
"""2026-01-01: before that, this program did not exist."""
_DAY = 86_400


def shm(facts: Facts) -> Iterator[Finding]:
    """Say whether `/dev/shm` is large enough for tensor parallelism."""
    name, found = "shm", facts.host.shm
    ranks = facts.wanted.tensor * facts.wanted.pipeline
    if isinstance(found, Unknown):
        yield skip(name, found.why)
        return
    sizes = f"{gib(found.free)} of {gib(found.total)} free"
    remedy = "`mount -o remount,size=16G /dev/shm`, in containers `docker run --shm-size=16g` or `--ipc=host`"
    if ranks == 1:
        yield ok(name, f"{sizes}; one GPU needs little")
    elif found.free < _SHM_LEAST:
        yield fail(name, f"{sizes}: too little for {ranks} workers", remedy)
    elif found.total < _SHM_WANTED:
        yield warn(name, f"{sizes}: 16 GiB are wanted for {ranks} workers", remedy)
    else:
        yield ok(name, sizes)


def port(facts: Facts) -> Iterator[Finding]:
    """Say whether vLLM can bind its address."""
    wanted, found = facts.wanted, facts.host.port
    if found.ours:
        yield ok("port", f"{wanted.port} is held by this instance's own engine")
    elif found.why_not is not None:
        yield fail("port", found.why_not, found.remedy)
    else:
        yield ok("port", f"{wanted.host} port {wanted.port} is free")


def exposure(facts: Facts) -> Iterator[Finding]:
    """Say whether the engine is open to whoever reaches this host."""
    wanted = facts.wanted
    local = wanted.host.startswith("127.") or wanted.host in {"localhost", "::1", "[::1]"}
    if local:
        yield ok("exposure", f"{wanted.host}: only this host")
    elif wanted.has_key:
        yield ok("exposure", f"{wanted.host}, with a key (/health, /metrics and others stay open: see vLLM's docs)")
    else:
        reach = "every address of this host" if wanted.host in _ELSEWHERE else wanted.host
        remedy = "set engine.vllm.api_key: ${credential:vllm-key}, or engine.vllm.host: 127.0.0.1 behind a proxy"
        yield warn("exposure", f"vLLM listens on {reach} without a key: anyone can use it", remedy)


def folders(facts: Facts) -> Iterator[Finding]:
    """Say whether the service may write where it has to."""
    host = facts.host
    refused = [folder for folder in host.folders if folder.why_not is not None]
    for folder in refused:
        remedy = f"`install -d -o {host.user} {folder.path}` as root, or set {folder.setting}"
        yield fail("folders", f"{folder.use} {folder.path}: {folder.why_not} (as {host.user})", remedy)
    if not refused:
        yield ok("folders", f"{', '.join(folder.use for folder in host.folders)}: writable by {host.user}")


def journal(facts: Facts) -> Iterator[Finding]:
    """Say whether the engine's log can be read back where it goes to the journal."""
    name, user = "journal", facts.host.user
    if facts.host.journal is None:
        yield ok(name, "not used: vLLM's log is a file")
    elif facts.host.journal:
        yield ok(name, f"{user} may read it")
    else:
        why = f"{user} may not read the journal: no phases, no `logs`, and causes by the exit code alone"
        remedy = "give the service SupplementaryGroups=systemd-journal, or set engine.vllm.log_file to a file"
        yield warn(name, why, remedy)


def limits(facts: Facts) -> Iterator[Finding]:
    """Say whether the limits of the service's processes let vLLM work."""
    found = facts.host.limits
    files, locked, processes = found.open_files, found.locked_memory, found.processes
    if files is not None and files < _OPEN_FILES:
        why = f"{files} open files ({found.whose}), vLLM wants {_OPEN_FILES}: a socket for each request"
        yield warn("open-files", why, f"set LimitNOFILE={_OPEN_FILES} in the unit, or `ulimit -Hn {_OPEN_FILES}`")
    else:
        yield ok("open-files", _amount(files, found))
    if locked is not None and locked < _LOCKED and facts.wanted.ranks > 1:
        why = f"{locked >> 10} KiB of locked memory ({found.whose}): too little for transfers between GPUs and hosts"
        yield warn("locked-memory", why, "set LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`")
    else:
        yield ok("locked-memory", _amount(locked and locked >> 10, found, " KiB"))
    if processes is not None and processes < _PROCESSES:
        why = f"{processes} processes and threads ({found.whose}): vLLM, torch and their compilers use thousands"
        yield warn("processes", why, f"set LimitNPROC={_PROCESSES * 4} in the unit, or `ulimit -u {_PROCESSES * 4}`")
    else:
        yield ok("processes", _amount(processes, found))


def _amount(count: int | None, found: Limits, unit: str = "") -> str:
    return f"{'unlimited' if count is None else f'{count}{unit}'} ({found.whose})"


def vllm_port(facts: Facts) -> Iterator[Finding]:
    """Say whether `VLLM_PORT` is set by accident: it is the base of vLLM's internal ports, not the API's port."""
    name, value, api = "vllm-port", facts.wanted.vllm_port, facts.wanted.port
    remedy = "set engine.vllm.port for the API, and unset VLLM_PORT"
    if value is None:
        yield ok(name, "VLLM_PORT is not set")
    elif not value.isdigit():
        why = f"VLLM_PORT={value} ends vLLM's start: Kubernetes sets it for a service called vllm"
        yield fail(name, why, "set enableServiceLinks: false in the pod, or rename the service, or unset VLLM_PORT")
    elif int(value) == api:
        yield fail(name, f"VLLM_PORT={value} gives vLLM's internal sockets the API's port", remedy)
    else:
        yield warn(name, f"VLLM_PORT={value} is the base of vLLM's internal ports, not the API's port", remedy)


def tmpdir(facts: Facts) -> Iterator[Finding]:
    """Say whether vLLM's Unix sockets fit below the folder for temporary files."""
    folder = facts.host.socket_folder
    length = len(folder.encode(errors="surrogateescape")) + _UUID
    if length > _MAX_SOCKET:
        why = f"vLLM's sockets in {folder} would have {length} bytes in their path, Linux allows {_MAX_SOCKET}"
        yield fail("tmpdir", why, "set engine.vllm.env.VLLM_RPC_BASE_PATH: /tmp, or a shorter TMPDIR")
    else:
        yield ok("tmpdir", folder)


def clock(facts: Facts) -> Iterator[Finding]:
    """Say whether the time is right: TLS to the Hub, tokens and the order of logs depend on it."""
    found = facts.host.clock
    remedy = "`timedatectl set-ntp true`, or install chrony"
    if found.now < _WRITTEN:
        yield fail("clock", "the clock shows a time before this program was written: TLS connections fail", remedy)
    elif found.now < found.configured - _DAY:
        yield warn("clock", "the clock is more than a day behind the time when the configuration was written", remedy)
    elif found.synchronized is None:
        yield skip("clock", "the kernel does not say whether its clock is synchronized")
    elif not found.synchronized:
        yield warn("clock", "the kernel says that nothing keeps its clock in step", remedy)
    else:
        yield ok("clock", "synchronized")
