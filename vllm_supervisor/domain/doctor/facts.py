"""What the doctor knows when it judges: plain values that somebody else collected. Sizes are bytes.

What could not be learnt is an `Unknown` that says why; a check then skips with these words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why something is not known. `absent` where it is known not to exist: a driver that is not installed."""

    why: str
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration asks of this host; None where it leaves the choice to vLLM."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    has_key: bool = False
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    nodes: int = 1
    executor: str | None = None
    utilization: float | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    revision: str | None = None
    offline: bool = False
    visible_devices: str | None = None
    """`CUDA_VISIBLE_DEVICES` as vLLM will see it."""
    vllm_port: str | None = None
    """`VLLM_PORT` as vLLM will see it."""
    use_v1: str | None = None

    @property
    def ranks(self) -> int:
        """The GPUs that the engine takes on this host."""
        return max(1, self.tensor * self.pipeline * self.data // max(1, self.nodes))


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library that vLLM's extension needs, and where the loader will find it.

    `misplaced` is a file of that name where the loader will not look.
    """

    name: str
    found: str | None = None
    misplaced: str | None = None


@dataclass(frozen=True, slots=True)
class Install:
    """The Python environment that the launcher runs. `torch_cuda` is None for a build without CUDA."""

    python: str
    vllm: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    runtime: Library | None = None
    """`libcudart`, where vLLM's extension needs it."""

    @property
    def needs_nvidia(self) -> bool:
        """Whether this build runs on NVIDIA's cards and on nothing else."""
        return self.torch_cuda is not None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a card. `ours`: of the engine that this configuration's daemon runs now."""

    pid: int
    name: str
    bytes: int | None = None
    ours: bool = False
    instance: int | None = None
    """The pid of the `vllm serve` that it belongs to, another one than ours."""
    utilization: float | None = None
    """That instance's `--gpu-memory-utilization`, where given."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. `capability` is NVIDIA's compute capability, 8.9 for Ada."""

    index: int
    uuid: str
    name: str
    total: int
    free: int
    capability: tuple[int, int] | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Cards:
    """The driver and its GPUs. `cuda` is the newest CUDA that the driver offers."""

    driver: str
    cuda: tuple[int, int] | None
    cards: tuple[Card, ...]
    links: Mapping[tuple[int, int], str] | Unknown = field(default_factory=lambda: Unknown("no topology was read"))
    """How two cards (lower index first) are joined, in the words of `nvidia-smi topo -m`: NV18, PIX, PHB, SYS."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a model's `config.json` says."""

    heads: int | None = None
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """The model as it lies on this host."""

    local: bool
    """A folder, not a name on the Hub."""
    path: str | None = None
    """Its folder, or its snapshot in the cache; None where there is none."""
    complete: bool = False
    """Its configuration and all of its weights are there."""
    bytes: int = 0
    """What of its weights is there."""
    config: ModelConfig | Unknown = field(default_factory=lambda: Unknown("config.json is not here yet"))
    token: bool = False
    cache: str = ""
    """The folder that it is downloaded to."""
    free: int | Unknown = 0
    """Room on the cache's file system."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is written to. `why_not` says why that will fail, None where it will not."""

    use: str
    path: str
    setting: str
    """What puts it elsewhere."""
    why_not: str | None = None
    free: int | None = None
    """Room on its file system, asked only of caches."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the service's processes; None for none. `whose` says where they were read."""

    whose: str
    open_files: int | None
    locked_memory: int | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class Clock:
    """The host's clock, seconds since 1970. `configured` is when the configuration was written."""

    now: float
    configured: float
    synchronized: bool | None


@dataclass(frozen=True, slots=True)
class Port:
    """Whether vLLM can bind its address; `why_not` and `remedy` say what is in the way."""

    why_not: str | None = None
    remedy: str = ""
    ours: bool = False
    """Held by the engine that this configuration's daemon runs now."""


@dataclass(frozen=True, slots=True)
class Shm:
    """`/dev/shm`."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Host:
    """The rest of the host. `user` is whose rights were looked at."""

    user: str
    port: Port
    shm: Shm | Unknown
    folders: tuple[Folder, ...]
    socket_folder: str
    """Where vLLM puts its own Unix sockets: `VLLM_RPC_BASE_PATH`, else the folder for temporary files."""
    limits: Limits
    clock: Clock
    journal: bool | None = None
    """Whether the user may read what it writes to the journal; None where the log is a file."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The program that the configuration launches: its path, or why it is not to be had."""

    path: str | None
    why_not: str = ""
    remedy: str = ""
    program: bool = True
    """It begins as a program does, for Linux itself to execute."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is judged."""

    wanted: Wanted
    launcher: Launcher
    install: Install | Unknown
    cards: Cards | Unknown
    model: Model | Unknown
    host: Host
