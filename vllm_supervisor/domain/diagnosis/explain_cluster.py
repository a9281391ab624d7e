"""Explanations: several GPUs, several processes, ports and sockets."""

from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation

CLUSTER = (
    Explanation(
        "nccl_error",
        "NCCL could not set up or use the links between GPUs",
        "`unhandled system error` says only that a system call failed: /dev/shm too small, a wrong network interface, "
        "peer access over PCIe that the platform breaks (IOMMU, ACS), an NCCL variable inherited from elsewhere.",
        (
            Check("NCCL_DEBUG=INFO (in `env`), then grep 'NCCL WARN' LOG", "the call that failed, and on what"),
            Check("df -h /dev/shm; nvidia-smi topo -m", "a small /dev/shm; how the cards are linked"),
            Check("env | grep NCCL", "settings that came with the environment"),
        ),
        (
            (
                "run once with NCCL_DEBUG=INFO and read the first `NCCL WARN`; give containers --ipc=host or a large "
                "/dev/shm"
            ),
            "NCCL_P2P_DISABLE=1 (in `env`) where PCIe peer access is broken, NCCL_SOCKET_IFNAME for the right network",
            "the same GPU model everywhere; a newer NCCL (nvidia-nccl-cu12, nvidia-nccl-cu13) for new cards",
        ),
    ),
    Explanation(
        "nccl_timeout",
        "a collective operation between GPUs never finished",
        "One rank did not arrive: it hung, it died, or the link never carried anything. Usually ten minutes of silence "
        "precede the message. The first collective (SeqNum=1) points at the links, a later one at a rank.",
        (
            Check("py-spy dump --pid PID, for each worker", "the rank that is somewhere else than the others"),
            Check("NCCL_DEBUG=INFO (in `env`)", "the transport that was chosen: P2P, SHM, NET"),
            Check("nvidia-smi topo -m; dmesg | grep -iE 'iommu|acs'", "PCIe links between cards, IOMMU in the way"),
        ),
        (
            (
                "restart once; if it repeats: NCCL_P2P_DISABLE=1 (broken PCIe peer access), --ipc=host or a large "
                "/dev/shm, NCCL_DEBUG=INFO to see the transport"
            ),
            "all cards of one model, all ranks of one vLLM, one driver; upgrade NCCL",
            "--disable-custom-all-reduce takes vLLM's own peer-to-peer path out of the question",
        ),
    ),
    Explanation(
        "ray_not_ready",
        "the Ray cluster does not offer the GPUs that are asked for",
        "Workers of the cluster have not joined, hold their GPUs for somebody else, or VLLM_HOST_IP is not the address "
        "under which Ray knows the node. vLLM waits up to 1800 s.",
        (
            Check("ray status", "fewer GPUs than tensor x pipeline parallel size, or GPUs in use"),
            Check("ray list nodes; hostname -I", "the node's address, and whether VLLM_HOST_IP is that"),
        ),
        (
            "bring up the missing Ray workers, and set VLLM_HOST_IP (in `env`, on each node) to the node's Ray address",
            "on one host drop Ray: --distributed-executor-backend mp",
        ),
    ),
    Explanation(
        "zmq_ipc_error",
        "the path of a socket between vLLM's processes cannot be used",
        "vLLM makes Unix sockets named by a uuid in VLLM_RPC_BASE_PATH (TMPDIR by default); a path holds 107 "
        "characters "
        "at most, and the directory has to be writable.",
        (Check("echo $TMPDIR $VLLM_RPC_BASE_PATH", "a long directory: 36 characters are added"),),
        ("set VLLM_RPC_BASE_PATH (in `env`) to a short writable directory, /tmp for one",),
    ),
    Explanation(
        "port_in_use",
        "a port that the engine needs is taken",
        "An earlier engine that is still ending, its orphan, or another service. It may be the API's port, or an "
        "internal one (rendezvous of torch.distributed, VLLM_PORT).",
        (
            Check("ss -ltnp 'sport = :PORT'", "the process that listens"),
            Check("ps -eo pid,ppid,comm | grep VLLM::", "leftovers of an earlier engine"),
        ),
        (
            (
                "end the holder (`ss -ltnp` names it), or choose another `engine.vllm.port`; an engine that is just "
                "ending "
                "frees it by itself"
            ),
            "an internal port: end orphans of the crashed engine, or set VLLM_PORT to a free range",
        ),
    ),
    Explanation(
        "execute_model_timeout",
        "a step of the model did not return in time",
        "The executor waits VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300; 40 in 0.8 and 0.9) for its workers. A worker hung "
        "in a kernel or a collective, or a compilation took that long.",
        (
            Check("grep -n 'Dumping scheduler output' LOG", "the requests of the step that hung"),
            Check("py-spy dump --pid PID, for each worker, while it hangs", "the rank that is stuck"),
        ),
        (
            (
                "restart; if it repeats with the same kind of request, find that feature (structured output, LoRA, "
                "images) "
                "and upgrade vLLM"
            ),
            "raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS only where a compilation at run time is legitimate",
        ),
    ),
)
