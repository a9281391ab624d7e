"""Several GPUs, several processes: NCCL, Ray, sockets between processes, ports."""

from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier, pattern

CLUSTER = (
    Signature(
        "nccl_timeout",
        pattern(
            r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d{1,20}), OpType=(?P<op>\w+)"
            r"(?:.*?Timeout\(ms\)=(?P<ms>\d+))?"
        ),
        "0.4 to 0.33, c10d's watchdog; usually 600 s of silence before it",
        "collective {seq} ({op}) never finished{first}. Run once with NCCL_DEBUG=INFO, then try "
        "NCCL_P2P_DISABLE=1 (broken PCIe peer access), and give containers --ipc=host or a large /dev/shm",
        adjust=lambda found: {
            "first": ": it is the first of all, so links or topology are at fault and a retry will not help"
            if int(found["seq"]) <= 1
            else ""
        },
    ),
    Signature(
        "nccl_timeout",
        pattern(
            r"Watchdog caught collective operation timeout|collective operation timeout|"
            r"Heartbeat monitor timed out|Some NCCL operations have failed or timed out|NCCL watchdog (?:thread|hang)|"
            r"Timed out waiting \d+ms for (?:recv|send) operation|Socket Timeout.{0,80}(?:store|rank)|"
            r"DistStoreError: (?:Timed out|Socket)|wait timeout after \d+ms"
        ),
        "0.4 to 0.33",
    ),
    Signature(
        "nccl_timeout",
        pattern(
            r"client socket has timed out after (?P<ms>\d+) ?ms while trying to connect to "
            r"\(?\[?(?P<host>[^\s,)\]]+)\]?[,:] ?(?P<port>\d+)"
        ),
        "torch.distributed, all versions: rank 0's store",
        "rank 0 did not answer at {host}, port {port}: start it first, and check that this host reaches it (firewall, "
        "VLLM_HOST_IP, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME)",
    ),
    Signature(
        "nccl_error",
        pattern(
            r"NCCL error|NCCL_ERROR_\w+|nccl(?:System|UnhandledCuda|Internal|Remote)Error|"
            r"ncclInvalid(?:Usage|Argument)|NCCL WARN .*(?:fail|error|Fail|Error)|DistBackendError|"
            r"Gloo connectFullMesh failed|RCCL error|NCCL Error \d+"
        ),
        "0.4 to 0.33",
    ),
    Signature(
        "ray_not_ready",
        pattern(
            r"Cannot provide a placement group|No available node types can fulfill|"
            r"Every node should have a unique IP|ray\.exceptions\.(?:RaySystemError|GetTimeoutError)|"
            r"Could not find any running Ray instance|Failed to (?:connect to|start) (?:the )?(?:GCS|Ray cluster)|"
            r"Current node has no GPU available\. current_node_resource|"
            r"ConnectionError: .{0,40}\bray\b|Ray cluster.{0,60}(?:not|no) .{0,20}(?:GPU|resource)"
        ),
        "0.2 to 0.32",
    ),
    Signature(
        "ray_not_ready",
        pattern(r"The number of required \w+ exceeds the total number of available \w+ in the placement group"),
        "0.7 to 0.32; a WARNING before the wait, an error inside a given placement group",
    ),
    Signature(
        "ray_not_ready",
        pattern(
            r"Waiting for creating a placement group of specs for (?P<waited>\d+) seconds|"
            r"No available node types can fulfill|"
            r"The number of required \w+ exceeds the total number of available \w+ in the placement group"
        ),
        "0.7 to 0.32: repeated at doubling intervals up to 1800 s",
        kind=Kind.PENDING,
        quiet=True,
    ),
    Signature(
        "zmq_ipc_error",
        pattern(r'ipc path "(?P<path>[^"]+)" is longer than (?P<limit>\d+) characters'),
        "0.6 to 0.33",
        "{path} is longer than the {limit} characters of a Unix socket's name: set VLLM_RPC_BASE_PATH (in `env`) to a "
        "short writable directory such as /tmp",
    ),
    Signature(
        "zmq_ipc_error",
        pattern(
            r"zmq\.error\.ZMQError: (?!Address already in use|.*Address already)|ZMQError: .{0,80}ipc|"
            r"AF_UNIX path too long|zmq\.error\.ContextTerminated"
        ),
        "0.6 to 0.33",
        start_only=True,
    ),
    Signature(
        "port_in_use",
        pattern(
            r"error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)\)|"
            r"Errno 98\] [Aa]ddress already in use(?:: \('(?P<host2>[^']*)', (?P<port2>\d+)\))?"
        ),
        "all versions: uvicorn's words up to 0.6, since then the early bind",
        "find who holds the port with `ss -ltnp{where}`; an own leftover is ended and the start repeated",
        adjust=lambda found: {
            "where": f" 'sport = :{port}'" if (port := found.get("port") or found.get("port2")) else ""
        },
    ),
    Signature(
        "port_in_use",
        pattern(r"EADDRINUSE|[Aa]ddress already in use|Port \d+ is (?:already )?in use|Only one usage of each socket"),
        "all versions; rendezvous port of torch.distributed, ZMQ, Ray",
    ),
    Signature(
        "execute_model_timeout",
        pattern(r"RPC call to (?P<method>\w+) timed out"),
        "0.8 to 0.33, multiproc executor",
        "`{method}` did not return in VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300; 40 before 0.10): restart; raise it in "
        "`env` only where a compilation at run time is expected",
    ),
    Signature(
        "startup_timeout",
        pattern(
            r"Timed out waiting for engine(?:s| core)|Timed out waiting for new engine core|"
            r"Did not receive response from front-end process within"
        ),
        "0.8 to 0.33; VLLM_ENGINE_READY_TIMEOUT_S, 600 by default",
    ),
    Signature(
        "nccl_error",
        pattern(r"NCCL_P2P_LEVEL is set to invalid|peer access is not supported between these two devices"),
        "0.2 to 0.33",
        tier=Tier.VAGUE,
    ),
)
