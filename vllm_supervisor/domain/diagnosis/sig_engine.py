"""The engine itself: deaths of its processes, hangs, ends from outside. Most are consequences of what stands above."""

from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier, pattern

ENGINE = (
    Signature(
        "worker_died",
        pattern(
            r"Worker proc (?P<who>\S+) died unexpectedly(?: \(exit code: (?P<code>[-\w]+)\))?|"
            r"Worker (?P<who2>\S+) pid \d+ died, exit code: (?P<code2>-?\d+)|"
            r"RayWorkerProc rank=(?P<who3>\S+) died unexpectedly|"
            r"The actor (?:is dead|died) (?:because|unexpectedly)|ActorDiedError|WorkerCrashedError"
        ),
        "0.5 to 0.33",
        "look for what ended {who}{code}: `dmesg -T | tail`, the cgroup's memory.events, and the first error above",
        tier=Tier.WORKER,
        adjust=lambda found: {
            "who": found.get("who") or found.get("who2") or found.get("who3") or "the worker",
            "code": f" (exit code {code})"
            if (code := found.get("code") or found.get("code2")) and code != "None"
            else "",
        },
    ),
    Signature(
        "engine_core_died",
        pattern(
            r"EngineCore encountered a fatal error|EngineDeadError|Engine ?[Cc]ore proc(?:ess)? \S+ died unexpectedly|"
            r"engine core exited unexpectedly|Engine process \(pid \d+\) died|MQLLMEngine is already dead|"
            r"Got fatal signal from worker processes|AsyncEngineDeadError|MQEngineDeadError|"
            r"AsyncLLM output_handler failed|Background loop (?:has errored already|is stopped)|"
            r"Engine loop (?:has died|iteration timed out)|DP Coordinator process .{0,40}died|"
            r"Engine background task failed|EngineGenerateError"
        ),
        "0.4 to 0.33",
        tier=Tier.ENGINE,
        quiet=True,
    ),
    Signature(
        "engine_core_init_failed",
        pattern(
            r"EngineCore failed to start|Engine core initialization failed|Engine process failed to start|"
            r"WorkerProc (?:initialization failed|failed to start)|Engine core process\w* failed"
        ),
        "0.6 to 0.33: says that it did not start, the reason stands above",
        tier=Tier.START,
    ),
    Signature(
        "killed_by_probe",
        pattern(
            r"[Ss]tartup probe failed|[Ll]iveness probe failed|failed (?:startup|liveness) probe|"
            r"[Pp]robe failed, will be restarted"
        ),
        "Kubernetes' events",
        quiet=True,
    ),
    Signature(
        "killed_by_probe",
        pattern(r"^KeyboardInterrupt: terminated"),
        "0.6 to 0.33: SIGTERM while starting, from whoever sent it",
        tier=Tier.VAGUE,
    ),
    Signature(
        "hang_health_ok",
        pattern(r"No available shared memory broadcast block found in (?P<seconds>\d+) seconds?"),
        "0.9 to 0.33: normal while starting and compiling, a hang when it repeats after readiness",
        kind=Kind.WARNING,
        quiet=True,
    ),
    Signature(
        "hang_health_ok",
        pattern(r"No available block found in (?P<seconds>\d+) second"),
        "0.6 to 0.8: the same",
        kind=Kind.WARNING,
        quiet=True,
    ),
)
