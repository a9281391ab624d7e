"""Between engines: the GPUs of the dead one must be free before the next is launched.

The driver gives memory back some time after the last process is gone; a vLLM that starts meanwhile finds too little.
"""

import anyio

from vllm_supervisor.domain.model import Blocker, BlockerKind
from vllm_supervisor.ports import Gpu, Gpus, Note
from vllm_supervisor.runtime.tasks import Post

LIMIT = 60.0
"""Seconds to wait at most."""
PAUSE = 0.25
STILL = 2.0
"""Seconds after which memory that does not fall counts as no longer falling."""
_MIB = 1 << 20
_SLACK = 64 * _MIB
"""Bytes: another context, or the driver's own figures, may differ by so much."""
_STEP = 16 * _MIB
_MAX_PIDS = 10_000


class Ground:
    """Knows which GPUs the last engine used, and how much of them was taken before it was launched."""

    def __init__(self, gpus: Gpus, before: "Ground | None" = None) -> None:
        """Look after `gpus`; `before` still knows what an engine on other GPUs has to give back."""
        self._gpus = gpus
        self._other = before
        self._before: dict[int, int] = {}
        self._used: set[int] = set()
        self._pids: set[int] = set()

    async def note(self, pids: frozenset[int]) -> None:
        """Look which GPUs these members of the living engine use."""
        gpus = await self._gpus.look()
        if gpus is None:
            return
        if len(self._pids) < _MAX_PIDS:
            self._pids |= pids
        self._used |= {gpu.index for gpu in gpus if any(holder.pid in pids for holder in gpu.holders)}

    async def clear(self, post: Post) -> Blocker | None:
        """Return when the GPUs are as they were, or no longer change; after 60 s, what holds them."""
        if self._other is not None:
            blocker = await self._other.clear(post)
            if blocker is not None:
                return blocker
            self._other = None
        began, waiting = anyio.current_time(), False
        fell_at: dict[int, float] = {}
        lowest: dict[int, int] = {}
        while True:
            gpus = await self._gpus.look()
            if gpus is None:
                return None
            now = anyio.current_time()
            for gpu in gpus:
                if gpu.used < lowest.get(gpu.index, 1 << 62) - _STEP:
                    lowest[gpu.index], fell_at[gpu.index] = gpu.used, now
            held = [gpu for gpu in gpus if self._held(gpu, still=now - fell_at[gpu.index] >= STILL)]
            if not held:
                break
            if not waiting:
                waiting = True
                post(Note("gpu_waited_for", fields={"held": [f"{gpu.index} ({gpu.name})" for gpu in held]}))
            if now - began >= LIMIT:
                return _blocker(held)
            await anyio.sleep(PAUSE)
        if self._pids:
            post(Note("gpu_released", fields={"seconds": round(now - began, 3)}))
        self._before = {gpu.index: gpu.used for gpu in gpus}
        self._used, self._pids = set(), set()
        return None

    def _held(self, gpu: Gpu, *, still: bool) -> bool:
        """Whether the dead engine still has something of this GPU."""
        if not self._pids or (self._used and gpu.index not in self._used):
            return False
        # A pid that lives is somebody else's by now: every member is proven gone.
        if any(holder.pid in self._pids and holder.name is None for holder in gpu.holders):
            return True
        return gpu.used > self._before.get(gpu.index, 0) + _SLACK and not still


def _blocker(held: list[Gpu]) -> Blocker:
    told = "; ".join(
        f"{LIMIT:.0f} s after the engine was gone, GPU {gpu.index} ({gpu.name}) has {gpu.used // _MIB} of "
        f"{gpu.total // _MIB} MiB in use, held by {_holders(gpu)}"
        for gpu in held
    )
    remedy = "end the holder, or wait; vllm-supervisor explain gpu_memory_not_free tells more"
    return Blocker(BlockerKind.GPU, f"gpu_memory_not_free: {told}", remedy)


def _holders(gpu: Gpu) -> str:
    largest = sorted(gpu.holders, key=lambda holder: holder.used or 0, reverse=True)[:3]
    return ", ".join(f"pid {holder.pid} ({holder.name or 'ended'})" for holder in largest) or "nobody that NVML lists"
