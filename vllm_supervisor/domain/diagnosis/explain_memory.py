"""Explanations: memory of the GPU, of the host, of /dev/shm, of the disk."""

from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation

_HOLDERS = Check(
    "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    "processes other than this engine that hold memory on the same card",
)

MEMORY = (
    Explanation(
        "kv_cache_too_small",
        "the GPU memory left after the weights holds no sequence of the full length",
        "vLLM takes gpu_memory_utilization x total memory, subtracts the weights, the peak of a trial run and, from "
        "0.21 on, an estimate for CUDA graphs; what is left is the cache. Here it is too little for one sequence of "
        "max_model_len tokens, or nothing. Starting again changes nothing.",
        (
            Check("grep -E 'Available KV cache|estimated maximum' LOG", "what was left, and the length vLLM proposes"),
            _HOLDERS,
        ),
        (
            (
                "lower --max-model-len to what the log proposes, or give the cache room: higher "
                "--gpu-memory-utilization, --kv-cache-dtype fp8, more GPUs"
            ),
            (
                "fewer --max-num-seqs and --max-num-batched-tokens, and caps on multimodal inputs "
                "(--limit-mm-per-prompt), "
                "shrink the trial run's peak"
            ),
            "two engines on a card: the utilizations are shares of the total and must add up to less than 1",
            (
                "preemptions in a running engine mean the same shortage at a later time: a signal to send fewer "
                "requests "
                "at once, not to restart"
            ),
        ),
    ),
    Explanation(
        "gpu_memory_not_free",
        "less GPU memory is free than the engine is told to take",
        "At its start vLLM (0.9 and later) compares free memory with utilization x total, and refuses when a "
        "neighbour, "
        "a desktop, or an engine that is still being torn down holds the difference.",
        (
            _HOLDERS,
            Check("ps -eo pid,ppid,comm | grep VLLM::", "EngineCore or workers of an earlier engine, adopted by pid 1"),
        ),
        (
            (
                "end the process that holds the memory (`nvidia-smi` names it), or choose another card with "
                "CUDA_VISIBLE_DEVICES in `env`"
            ),
            "a shortage of a few hundred MiB right after a stop passes by itself: the driver frees memory late",
            "on a card that also draws a desktop, set --gpu-memory-utilization below free/total",
        ),
    ),
    Explanation(
        "oom_at_load",
        "out of GPU memory while starting",
        "The stage decides, because the remedies are opposite. While weights load, nothing but the weights counts, and "
        "utilization has no influence. In the profiling run, activations of the largest batch are too many. In NCCL "
        "buffers, graph capture and the sampler's warm-up, memory outside the pool is missing, because the pool took "
        "it.",
        (
            Check(
                "grep -nE 'Starting to load|Model loading took|KV cache size|Capturing|warming up' LOG",
                "the last line before the error is the stage",
            ),
            _HOLDERS,
        ),
        (
            (
                "find the stage first: while loading weights use more GPUs or a smaller quantization; in graph "
                "capture, "
                "sampler warm-up or NCCL lower --gpu-memory-utilization"
            ),
            "weights: --tensor-parallel-size over more cards, a quantized checkpoint, --cpu-offload-gb",
            "profiling: lower --max-num-batched-tokens, --max-num-seqs, multimodal limits",
            "graph capture: lower --gpu-memory-utilization by 0.05, fewer --max-num-seqs, or --enforce-eager",
            "sampler warm-up: --max-num-seqs 256 or less (it allocates seqs x vocabulary in 32-bit, twice)",
            (
                "NCCL buffers (`Cuda failure 2 'out of memory'` inside an NCCL error): lower "
                "--gpu-memory-utilization by "
                "0.02 to 0.05"
            ),
        ),
    ),
    Explanation(
        "oom_runtime",
        "out of GPU memory while serving",
        "The pool is fixed at the start, so a running engine only grows outside it: sampling with large vocabularies, "
        "log-probabilities of prompts, images, a LoRA loaded late. A peak met too little headroom, and the engine "
        "died.",
        (
            Check("grep -nE 'Running: [0-9]+' LOG | tail", "how many requests ran at the peak"),
            _HOLDERS,
        ),
        (
            "lower --gpu-memory-utilization by 0.05 or --max-num-seqs; a restart helps only until the next peak",
            "let clients send fewer requests at once: lower `concurrency`, which they are told",
            "preemptions are no out-of-memory error: they say that the pool is full, and cost time, not the engine",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (in `env`) where much is reserved but unallocated",
        ),
    ),
    Explanation(
        "host_oom_kill",
        "the host's memory ran out and the kernel killed the engine",
        "Loading copies weights through host memory, once for each worker; pinned buffers and "
        "--cpu-offload-gb add to it, and in older versions --swap-space (0.32 has it no longer). "
        "Under a limit (systemd's MemoryMax, a container) the cgroup's own OOM killer acts. "
        "SIGKILL alone (exit 137) proves nothing: anybody can send it.",
        (
            Check("journalctl -k | grep -iE 'out of memory|oom-kill'", "the process that was killed, and its size"),
            Check("cat /sys/fs/cgroup/system.slice/UNIT/memory.events", "oom_kill above 0 for the engine's cgroup"),
            Check("free -g; kubectl describe pod POD | grep -A3 'Last State'", "little RAM, or Reason: OOMKilled"),
        ),
        (
            "give the host or the cgroup more memory, or need less: no --cpu-offload-gb, a smaller checkpoint",
            "--swap-space 0 where `vllm serve --help=all` lists it: older versions only",
            "raise MemoryMax of the unit or the container's limit: page cache of the weights counts towards it",
        ),
    ),
    Explanation(
        "shm_too_small",
        "shared memory (/dev/shm) is too small for what the processes of the engine exchange",
        "Workers and NCCL exchange data in /dev/shm. Containers get 64 MB of it unless told otherwise. Writing beyond "
        "its end shows as `No space left on device`, as an unspecific NCCL system error, or as a bus error.",
        (
            Check("df -h /dev/shm", "a size of 64M, or no free space"),
            Check("ls -la /dev/shm", "files of engines that are gone (psm_*, sem.mp-*, nccl-*)"),
            Check("NCCL_DEBUG=INFO (in `env`), then the log", "`Error while creating shared memory segment`"),
        ),
        (
            "docker: --ipc=host or --shm-size=16g; Kubernetes: an emptyDir with `medium: Memory` on /dev/shm",
            "remove leftovers of dead engines from /dev/shm",
            "systemd: PrivateTmp does not limit /dev/shm, a `tmpfs` mount option `size=` does",
        ),
    ),
    Explanation(
        "disk_full",
        "a file system is full",
        "Weights, the Hub's partial downloads (.incomplete), compile caches and logs fill a disk. The same message may "
        "mean /dev/shm: then the class is shm_too_small.",
        (
            Check("df -h ~/.cache/huggingface ~/.cache/vllm /tmp /dev/shm", "which one has no space"),
            Check("du -sh ~/.cache/huggingface/hub/*", "models nobody serves any more"),
        ),
        (
            "free space, or point HF_HOME, VLLM_CACHE_ROOT and TMPDIR (in `env`) at a larger disk",
            "remove *.incomplete files below the hub's blobs directory: a fresh start does not reuse all of them",
        ),
    ),
)
