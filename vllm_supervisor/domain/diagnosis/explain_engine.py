"""Explanations: deaths and hangs of the engine, and what only the supervisor sees."""

from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation

_ABOVE = Check("grep -nE 'ERROR|Error|CRITICAL' LOG | head -20", "the first error, which the others follow from")
_STACKS = Check("py-spy dump --pid PID, of the EngineCore and each worker", "where each of them stands")

ENGINE = (
    Explanation(
        "engine_core_died",
        "the engine's process died",
        "The process that schedules and computes ended, while the API server lived on for a few seconds. Its own last "
        "lines name the cause; if it was killed from outside, there are none. 0.8.0 to 0.8.2 kill their own tree with "
        "SIGKILL: exit 137 without any OOM killer.",
        (
            _ABOVE,
            Check("journalctl -k --since -1h | grep -iE 'oom|segfault|Xid'", "a kill or a fault in the kernel's log"),
        ),
        ("restart; read the first error above the death, and the kernel's log if there is none",),
    ),
    Explanation(
        "worker_died",
        "a worker process died",
        "One of the processes that hold a GPU ended. `exit code: None` means that nobody saw how. Errors after it "
        "(`cancelled`, EngineDeadError) are consequences.",
        (
            _ABOVE,
            Check(
                "journalctl -k --since -1h | grep -iE 'oom|segfault|trap|Xid'",
                "what ended it: -9 a kill, -11 a "
                "segmentation fault, -4 an illegal instruction, -15 a request from elsewhere",
            ),
        ),
        ("restart; find what ended the worker in the kernel's log and above its death",),
    ),
    Explanation(
        "engine_core_init_failed",
        "the engine did not start, for a reason that is not known here",
        "The message stands for any failed start: the cause is above it, in the lines of EngineCore or a worker. "
        "`Failed core proc(s): {}` carries no information.",
        (Check("grep -nE 'EngineCore|Worker' LOG | grep -E 'Error|ERROR' | head", "the first error of the child"),),
        (
            (
                "look 50 to 200 lines above for the child's traceback; if the log was cut, start once by hand with "
                "VLLM_LOGGING_LEVEL=DEBUG"
            ),
        ),
    ),
    Explanation(
        "exit_0_on_engine_death",
        "vLLM ended with status 0 although its engine had died",
        "With one API server, a dead engine lets the server stop in an orderly way, with status 0 (every version read, "
        "0.8 to 0.33). systemd's Restart=on-failure sees a success.",
        (_ABOVE,),
        (
            (
                "treat an end that nobody asked for as a failure, whatever its code: this daemon does; elsewhere use "
                "Restart=always"
            ),
        ),
    ),
    Explanation(
        "hang_health_ok",
        "the engine makes no progress while /health says 200",
        "/health asks the API server, not the engine. A worker that waits for ever in a collective, a kernel or a lock "
        "leaves requests unanswered, and the gauges at their last values.",
        (
            Check(
                "curl -s 127.0.0.1:8000/metrics | grep iteration_tokens_total_count, twice, 10 s apart",
                "the same number, although requests wait",
            ),
            _STACKS,
            Check("grep -c 'No available shared memory broadcast block' LOG", "a line a minute after readiness"),
        ),
        (
            (
                "restart; keep the stacks of all processes first. If it repeats on several GPUs: NCCL_P2P_DISABLE=1, "
                "--disable-custom-all-reduce, a newer NCCL"
            ),
        ),
    ),
    Explanation(
        "health_flapping",
        "health probes fail now and then although the engine works",
        "Under load the API server's loop answers late: a probe with a short timeout misses. Connections refused mean "
        "dead, late answers mean busy.",
        (
            Check(
                "curl -s 127.0.0.1:8000/metrics | grep generation_tokens_total, twice", "it rises: the engine is alive"
            ),
        ),
        (
            "raise `probe.timeout` and `probe.failure_threshold`, and let clients keep fewer requests in flight",
            "--api-server-count 2 takes work off the server's loop",
        ),
    ),
    Explanation(
        "killed_by_probe",
        "somebody ended the engine with SIGTERM while it was starting",
        "A traceback that ends in `KeyboardInterrupt: terminated` is no fault of vLLM: a startup or liveness probe, a "
        "timeout of the service manager or a person sent SIGTERM.",
        (
            Check("kubectl describe pod POD | grep -iE 'probe|kill'", "`Startup probe failed`, `will be restarted`"),
            Check("journalctl -u UNIT | grep -i timeout", "`start operation timed out`"),
        ),
        (
            (
                "give the start more time: failureThreshold x periodSeconds of the startup probe, TimeoutStartSec of a "
                "unit; large models take many minutes"
            ),
        ),
    ),
    Explanation(
        "orphan_gpu_processes",
        "processes of an earlier engine are still alive and hold GPU memory",
        "After a SIGKILL of the API server, EngineCore and workers live on, adopted by pid 1 (0.28 to 0.33). Their "
        "name is "
        "`VLLM::EngineCor`, cut by the kernel, so that a search for python does not find them.",
        (
            Check("ps -eo pid,ppid,pgid,comm | grep VLLM::", "processes whose parent is 1"),
            Check("nvidia-smi --query-compute-apps=pid,used_memory --format=csv", "the memory that they hold"),
        ),
        ("end them (`kill -9 PID` of each VLLM:: process whose parent is 1), then start",),
    ),
    Explanation(
        "readiness_gap",
        "traffic came before the engine could serve",
        "A port that accepts, or /health alone, does not mean that a token can be made: weights may still load, "
        "kernels "
        "may be missing.",
        (Check("vllm-supervisor status --check", "status 1 until a token was made"),),
        ("route by /readyz of this daemon (503 until a token came back), not by the engine's port",),
    ),
    Explanation(
        "sigterm_lost_in_startup",
        "vLLM lost a SIGTERM that came while it started",
        "While the EngineCore child initialises, the first SIGTERM has no effect (8 of 8 tries on 0.32), and the start "
        "goes on to readiness.",
        (Check("grep -n 'shutdown triggered' LOG", "nothing, although a stop was asked for"),),
        ("send SIGTERM again after some seconds, then SIGKILL to the whole group: this daemon does both",),
    ),
    Explanation(
        "slow_shutdown",
        "the engine did not end in the time it was given",
        "The server waits for open connections to close, and a client that never hangs up holds it for ever; a worker "
        "blocked in a driver call does not hear SIGTERM.",
        (
            Check("grep -n 'Waiting for connections to close' LOG", "the server waits for clients"),
            _STACKS,
        ),
        ("cut clients off before the stop; keep `stop.grace` at 30 s or more, and --shutdown-timeout below it",),
    ),
    Explanation(
        "startup_hang",
        "the start stands still",
        "No line, no byte, no GPU memory, no processor time for `startup.stall_timeout`: a collective that never "
        "connects, a lock in a cache directory, a question on a terminal that is not there.",
        (
            _STACKS,
            Check("find ~/.cache -name '*.lock' -mmin -600", "locks of a process that is gone"),
            Check("NCCL_DEBUG=INFO (in `env`)", "ranks that wait for each other"),
        ),
        ("restart; with several GPUs try NCCL_P2P_DISABLE=1 and --ipc=host; remove stale *.lock files",),
    ),
    Explanation(
        "startup_slow",
        "the start takes long, and makes progress",
        "Weights over a network, a first compilation, kernels that are built on the host. Not a failure.",
        (Check("vllm-supervisor status", "the phase, how far it is, and what earlier starts took"),),
        ("wait; keep weights on a local disk, and the caches (VLLM_CACHE_ROOT, FlashInfer, Triton) between starts",),
    ),
    Explanation(
        "startup_timeout",
        "vLLM's own limit for the start ran out",
        "The API server waits VLLM_ENGINE_READY_TIMEOUT_S (600) for its engine. Slow weights or a first build of "
        "kernels "
        "take longer; a second start finds the caches warm.",
        (Check("grep -nE 'Loading|Compiling|Capturing' LOG | tail -3", "what it was doing when time ran out"),),
        (
            (
                "raise VLLM_ENGINE_READY_TIMEOUT_S (in `env`; this daemon raises it unless you set it), or start "
                "again with "
                "warm caches"
            ),
        ),
    ),
)
