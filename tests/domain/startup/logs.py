"""Starts as each era of vLLM logs them, written by hand after its format strings: line, and the phase it leads to."""

from vllm_supervisor.domain.startup import StartPhase as P

Era = list[tuple[str, P]]

V06: Era = [
    ("INFO 10-24 13:20:01 api_server.py:528] vLLM API server version 0.6.3.post1", P.CONFIGURING),
    ("INFO 10-24 13:20:02 api_server.py:179] Started engine process with PID 77", P.CONFIGURING),
    ("INFO 10-24 13:20:10 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: x", P.CONFIGURING),
    ("INFO 10-24 13:20:12 model_runner.py:1056] Starting to load model org/model-7b...", P.CONFIGURING),
    ("model-00001-of-00004.safetensors:  61%|######    | 3.0G/4.9G [00:30<00:19, 100MB/s]", P.DOWNLOADING),
    ("Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.61it/s]", P.LOADING_WEIGHTS),
    ("INFO 10-24 13:20:18 model_runner.py:1067] Loading model weights took 14.2487 GB", P.LOADING_WEIGHTS),
    ("INFO 10-24 13:20:20 gpu_executor.py:122] # GPU blocks: 27902, # CPU blocks: 4096", P.LOADING_WEIGHTS),
    (
        "INFO 10-24 13:20:24 model_runner.py:1395] Capturing the model for CUDA graphs. This may lead to",
        P.CAPTURING_GRAPHS,
    ),
    ("INFO 10-24 13:20:44 model_runner.py:1523] Graph capturing finished in 20 secs.", P.CAPTURING_GRAPHS),
    ("INFO:     Started server process [1]", P.WARMING_UP),
]
V08: Era = [
    ("INFO 04-28 09:00:01 [api_server.py:1043] vLLM API server version 0.8.5", P.CONFIGURING),
    ("INFO 04-28 09:00:05 [config.py:717] This model supports multiple tasks: {'embed'}. Defaulting to", P.CONFIGURING),
    ("INFO 04-28 09:00:12 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: x", P.CONFIGURING),
    (
        "(VllmWorker rank=0 pid=9) INFO 04-28 09:00:20 [gpu_model_runner.py:1329] Starting to load model o/m...",
        P.CONFIGURING,
    ),
    (
        (
            "(VllmWorker rank=0 pid=9) INFO 04-28 09:05:20 [w.py:281] Time spent downloading weights for o/m: "
            "312.500000 seconds"
        ),
        P.DOWNLOADING,
    ),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/7 [00:00<?, ?it/s]", P.LOADING_WEIGHTS),
    (
        "(VllmWorker rank=0 pid=9) INFO 04-28 09:05:30 [loader.py:458] Loading weights took 9.25 seconds",
        P.LOADING_WEIGHTS,
    ),
    (
        (
            "(VllmWorker rank=0 pid=9) INFO 04-28 09:05:31 [g.py:1347] Model loading took 7.5000 GiB and "
            "10.125000 seconds"
        ),
        P.LOADING_WEIGHTS,
    ),
    (
        "INFO 04-28 09:05:40 [backends.py:420] Using cache directory: /home/llm/.cache/vllm/x for vLLM's torch.compile",
        P.COMPILING,
    ),
    ("INFO 04-28 09:06:10 [monitor.py:33] torch.compile takes 29.50 s in total", P.COMPILING),
    ("INFO 04-28 09:06:12 [kv_cache_utils.py:634] GPU KV cache size: 162,704 tokens", P.COMPILING),
    (
        "INFO 04-28 09:06:12 [kv_cache_utils.py:637] Maximum concurrency for 16,000 tokens per request: 10.17x",
        P.COMPILING,
    ),
    (
        "INFO 04-28 09:06:40 [gpu_model_runner.py:1686] Graph capturing finished in 25 secs, took 0.50 GiB",
        P.CAPTURING_GRAPHS,
    ),
    (
        "INFO 04-28 09:06:41 [core.py:159] init engine (profile, create kv cache, warmup model) took 69.50 seconds",
        P.WARMING_UP,
    ),
]
_CYAN = "\x1b[0;36m(EngineCore_DP0 pid=212)\x1b[0;0m "
V011: Era = [
    (
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 10-16 09:12:01 [api_server.py:1839] vLLM API server version 0.11.0",
        P.CONFIGURING,
    ),
    (_CYAN + "INFO 10-16 09:12:18 [core.py:644] Waiting for init message from front-end.", P.CONFIGURING),
    (
        "(Worker_TP0 pid=300) INFO 10-16 09:12:27 [gpu_model_runner.py:2602] Starting to load model org/m...",
        P.CONFIGURING,
    ),
    ("\rLoading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.61it/s]", P.LOADING_WEIGHTS),
    (_CYAN + "INFO 10-16 09:13:00 [backends.py:559] Dynamo bytecode transform time: 8.10 s", P.COMPILING),
    (_CYAN + "INFO 10-16 09:13:20 [backends.py:197] Compiling a graph for dynamic shape takes 20.10 s", P.COMPILING),
    ("(Worker_TP0 pid=300) INFO 10-16 09:13:49 [gpu_worker.py:298] Available KV cache memory: 11.17 GiB", P.COMPILING),
    (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  52%|#####     | 35/67 [00:02<00:02, 11it/s]",
        P.CAPTURING_GRAPHS,
    ),
    ("Capturing CUDA graphs (decode, FULL): 100%|##########| 67/67 [00:04<00:00, 14.00it/s]", P.CAPTURING_GRAPHS),
    (
        _CYAN
        + "INFO 10-16 09:14:00 [core.py:210] init engine (profile, create kv cache, warmup model) took 77.10 seconds",
        P.WARMING_UP,
    ),
]
V032: Era = [
    (
        "(APIServer pid=1) INFO 11-29 19:33:40 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0",
        P.CONFIGURING,
    ),
    ("(APIServer pid=1) INFO 11-29 19:33:50 [model.py:640] Resolved architecture: LlamaForCausalLM", P.CONFIGURING),
    ("(Worker pid=30) INFO 11-29 19:34:10 [cpu_model_runner.py:68] Starting to load model /m...", P.CONFIGURING),
    ("Multi-thread loading shards:  25% Completed | 1/4 [00:00<00:01,  2.61it/s]", P.LOADING_WEIGHTS),
    (
        "(Worker pid=30) INFO 11-29 19:34:12 [default_loader.py:501] Loading weights took 0.31 seconds",
        P.LOADING_WEIGHTS,
    ),
    ("(Worker pid=30) INFO 11-29 19:34:13 [monitor.py:40] [language_model] Starting torch.compile", P.COMPILING),
    (
        "(Worker pid=30) INFO 11-29 19:34:33 [monitor.py:60] [language_model] torch.compile took 20.00 s in total",
        P.COMPILING,
    ),
    (
        (
            "(E pid=20) INFO 11-29 19:34:34 [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens, Maximum "
            "concurrency for 1,024 tokens per request: 128.00x"
        ),
        P.COMPILING,
    ),
    (
        (
            "(E pid=20) INFO 11-29 19:34:40 [core.py:402] init engine (profile, create kv cache, warmup model) took "
            "26.10 s (compilation: 20.00 s)"
        ),
        P.WARMING_UP,
    ),
    ("INFO:     Application startup complete.", P.WARMING_UP),
]
JSON_033: Era = [
    (
        (
            '{"asctime": "2026-11-29 19:34:40", "levelname": "INFO", "name": "vllm.x", "processName": "X", "process":'
            f' 20, "message": "{message}"}}'
        ),
        phase,
    )
    for message, phase in [
        ("vLLM server version 0.33.0, serving model org/m", P.CONFIGURING),
        ("Starting to load model org/m...", P.CONFIGURING),
        ("Model loading took 14.99 GiB memory and 8.104000 seconds", P.LOADING_WEIGHTS),
        ("Directly load AOT compilation from path /home/llm/x", P.COMPILING),
        ("Graph capturing finished in 9 secs, took 0.61 GiB", P.CAPTURING_GRAPHS),
        ("Starting vLLM server on http://0.0.0.0:8000", P.WARMING_UP),
    ]
]

_EAGER = "(APIServer pid=1) WARNING 11-29 22:41:13 [vllm.py:1727] Inductor compilation was disabled by user settings, x"
V032_EAGER: Era = [
    ("Triton is installed, but doesn't include CPU backend. Disabling Triton.", P.CONFIGURING),
    (V032[0][0], P.CONFIGURING),
    (_EAGER, P.CONFIGURING),
    ("(Worker pid=9) INFO 11-29 22:41:30 [cpu_model_runner.py:68] Starting to load model /m...", P.CONFIGURING),
    ("(Worker pid=9) INFO 11-29 22:41:30 [base_loader.py:82] Initializing model took 0.107754 seconds", P.CONFIGURING),
    ("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 134.51it/s]", P.LOADING_WEIGHTS),
    ("(EngineCore pid=8) INFO 11-29 22:41:34 [core.py:402] init engine (profile, x) took 1.59 s", P.WARMING_UP),
    (_EAGER.replace("APIServer", "EngineCore"), P.WARMING_UP),
]
"""As a real 0.32.0 on a CPU printed it, shortened: with `--enforce-eager` nothing is compiled, and it says so."""

ERAS = {"0.6": V06, "0.8": V08, "0.11": V011, "0.32": V032, "0.32 eager": V032_EAGER, "0.33 as JSON": JSON_033}

WRAPPED = {
    "compose": "vllm-1  | {}",
    "kubernetes": "2026-11-29T19:33:53.123456789Z {}",
    "cri": "2026-11-29T19:33:53.123456789Z stdout F {}",
    "journald": "Nov 29 19:33:53 host vllm[123]: {}",
}
