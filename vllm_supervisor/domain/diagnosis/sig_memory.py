"""Memory: of the GPU, of the host, of /dev/shm, of the disk."""

from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier, pattern


def _utilization_that_fits(found: dict[str, str]) -> dict[str, str]:
    """Two decimals below free/total: what vLLM compares is free >= utilization x total (0.9 and later)."""
    free, total = float(found["free"]), float(found["total"])
    share = int(free / total * 100) / 100 if total else 0.0
    if share < 0.1:  # noqa: PLR2004 # below a tenth of the card no model of use fits
        return {"fit": "; a lower utilization does not help, almost nothing is free"}
    return {"fit": f", or, to live beside it, set --gpu-memory-utilization {share:.2f}"}


_ROOM = (
    "raise --gpu-memory-utilization, shrink the trial run (--max-num-batched-tokens, --max-num-seqs, multimodal "
    "limits), or use more GPUs or a smaller checkpoint"
)
OOM_BY_STAGE = "{stage}"
"""The remedy that only the verdict can word: it knows what the engine was doing."""

MEMORY = (
    Signature(
        "kv_cache_too_small",
        pattern(
            r"KV cache is needed, which is larger than the available KV cache memory \((?P<have>[\d.]+) ?Gi?B\)"
            r".*?estimated maximum model length is (?P<fit>\d+)"
        ),
        "0.9 to 0.33, v1/core/kv_cache_utils.py",
        "set --max-model-len {fit} (what vLLM says fits into {have} GiB), or give the cache more room: "
        "higher --gpu-memory-utilization, --kv-cache-dtype fp8, more GPUs",
    ),
    Signature(
        "kv_cache_too_small",
        pattern(r"KV cache is needed, which is larger than the available KV cache memory(?: \((?P<have>-?[\d.]+))?"),
        "0.8 to 0.33; 0.19 on proposes no length where nothing is left",
        "one sequence does not fit{have}: {room}, or lower --max-model-len",
        adjust=lambda found: {"have": f" into {have} GiB" if (have := found.get("have")) else "", "room": _ROOM},
    ),
    Signature(
        "kv_cache_too_small",
        pattern(
            r"max seq len \((?P<len>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
            r"\((?P<fit>\d+)\)"
        ),
        "0.2 to 0.10, V0 worker",
        "set --max-model-len {fit} (the cache holds {fit} tokens, {len} were asked for), or raise "
        "--gpu-memory-utilization",
    ),
    Signature(
        "kv_cache_too_small",
        pattern(r"No available memory for the cache blocks"),
        "0.1 to 0.33",
        "nothing is left for the cache: {room}",
        adjust=lambda _: {"room": _ROOM},
    ),
    Signature(
        "kv_cache_too_small",
        pattern(r"Available KV cache memory: -[\d.]+ GiB"),
        "0.9 to 0.33, gpu_worker.py; a negative figure precedes the error",
        "nothing is left for the cache: {room}",
        adjust=lambda _: {"room": _ROOM},
        kind=Kind.WARNING,
        quiet=True,
    ),
    Signature(
        "gpu_memory_not_free",
        pattern(
            r"Free memory on device(?: \S+)? \((?P<free>\d{1,9}(?:\.\d{1,9})?)/(?P<total>\d{1,9}(?:\.\d{1,9})?) GiB\) "
            r"on startup is less than (?:desired GPU memory utilization|the engine's budget)"
            r".*?\((?P<share>[\d.]+), (?P<need>[\d.]+) GiB\)"
        ),
        "0.9 to 0.33; 0.16 and later name the device",
        "{need} GiB are wanted (utilization {share}) and {free} of {total} GiB are free: find the holder with "
        "`nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv` and end it{fit}",
        adjust=_utilization_that_fits,
    ),
    Signature(
        "gpu_memory_not_free",
        pattern(r"Free memory on device.{0,60}on startup is less than"),
        "0.9 to 0.33",
    ),
    Signature(
        "gpu_memory_not_free",
        pattern(r"Error in memory profiling\. Initial free memory"),
        "0.6 to 0.32: a neighbour released memory while vLLM measured",
        "another process on the same GPU ended while vLLM was measuring: start again, one start per GPU at a time",
    ),
    Signature(
        "oom_at_load",
        pattern(r"CUDA out of memory occurred when warming up sampler with (?P<seqs>\d+) dummy requests"),
        "0.8 to 0.33",
        "lower --max-num-seqs (the warm-up ran {seqs} requests; try a quarter of that) or --gpu-memory-utilization: "
        "the sampler needs room outside the memory pool",
    ),
    Signature(
        "oom_at_load",
        pattern(r"Cuda failure (?:\d+ )?'out of memory'|(?:NCCL|RCCL).{0,200}out of memory"),
        "0.4 to 0.33: NCCL allocates its buffers after the memory pool was filled",
        "lower --gpu-memory-utilization by 0.02 to 0.05: NCCL needs room outside the pool, and the pool took it",
    ),
    Signature(
        "oom_at_load",
        pattern(
            r"(?:CUDA|HIP|XPU) out of memory(?:\. Tried to allocate (?P<tried>[\d.]+ [KMG]i?B))?|"
            r"(?<!ray\.exceptions\.)\bOutOfMemoryError\b(?! as)|CUDA error: out of memory|cudaErrorMemoryAllocation|"
            r"CUBLAS_STATUS_ALLOC_FAILED"
        ),
        "all versions; whether at load or at run time is decided by the stage",
        OOM_BY_STAGE,
    ),
    Signature(
        "shm_too_small",
        pattern(r"(?:Error while creating shared memory segment|ncclShmOpen|while creating shared memory).*"),
        "0.2 to 0.33, NCCL; the generic NCCL error follows it",
    ),
    Signature(
        "shm_too_small",
        pattern(
            r"unable to write to file </torch_|No space left on device.{0,80}/dev/shm|"
            r"/dev/shm/\S*.{0,80}No space left on device|No space left on device: .?/?(?:psm_|torch_|sem\.mp-)"
        ),
        "all versions",
    ),
    Signature(
        "shm_too_small",
        pattern(r"Errno 28\]|No space left on device"),
        "multiprocessing's semaphores and segments name no path",
        within=pattern(r"multiprocessing/(?:synchronize|shared_memory|heap)\.py|SemLock|shm_open|/dev/shm"),
    ),
    Signature(
        "shm_too_small",
        pattern(
            r"insufficient shared memory \(shm\)|Unexpected bus error encountered in worker|"
            r"DataLoader worker \(pid\(?s?\)? ?[^)]{0,80}\) (?:is|are) killed by signal: Bus error|"
            r"unable to (?:open|mmap|allocate) shared memory|"
            r"(?:ftruncate|posix_fallocate|shm_open) ?(?:failed|\().{0,60}(?:No space left|shared memory)"
        ),
        "torch multiprocessing",
    ),
    Signature(
        "shm_too_small",
        pattern(r"^(?:Fatal Python error: )?Bus error\b|^!+ ?(?:SIGBUS|Bus error)|exit code:? -7\b"),
        "a full /dev/shm ends a writer with SIGBUS",
        tier=Tier.VAGUE,
    ),
    Signature(
        "disk_full",
        pattern(r"No space left on device|Disk quota exceeded|database or disk is full"),
        "all versions, hub downloads and caches",
        start_only=True,
    ),
    Signature(
        "disk_full",
        pattern(
            r"Not enough free disk space to download the file\. The expected file size is: (?P<need>[\d.]+ \wB)\. "
            r"The target location (?P<where>\S+) only has (?P<have>[\d.]+ \wB)"
        ),
        "huggingface_hub, before the download begins",
        "{where} has {have} free and one file needs {need}: free space, or point HF_HOME (in `env`) at a larger disk",
        kind=Kind.WARNING,
        quiet=True,
    ),
    Signature(
        "host_oom_kill",
        pattern(
            r"Out of memory: Killed process|oom-kill:constraint|Memory cgroup out of memory|OOMKilled|"
            r"killed by the OOM killer|killed by SIGKILL by OOM killer|oom_reaper: reaped process|"
            r"(?:Task|Workers? ).{0,60}killed due to the node running low on memory|OutOfMemoryError: Task was killed"
        ),
        "kernel, systemd, Kubernetes, Ray",
    ),
    Signature(
        "host_oom_kill",
        pattern(r"^(?:.{0,60}: line \d+:\s+\d+ )?Killed\b(?: {2,}.*)?$"),
        "a shell's word for SIGKILL: perhaps the OOM killer, perhaps a person",
        tier=Tier.KILLED,
    ),
    Signature(
        "host_oom_kill",
        pattern(r"DefaultCPUAllocator: (?:can't|not enough).{0,40}memory|^MemoryError\b|Cannot allocate memory"),
        "host RAM exhausted, refused instead of killed",
    ),
)
