"""All signatures in one order, and the gate that keeps nearly every line of a big log away from them."""

import re
from collections import defaultdict

from vllm_supervisor.domain.diagnosis.sig_cluster import CLUSTER
from vllm_supervisor.domain.diagnosis.sig_config import CONFIG
from vllm_supervisor.domain.diagnosis.sig_engine import ENGINE
from vllm_supervisor.domain.diagnosis.sig_gpu import GPU
from vllm_supervisor.domain.diagnosis.sig_hub import HUB
from vllm_supervisor.domain.diagnosis.sig_memory import MEMORY
from vllm_supervisor.domain.diagnosis.signature import Signature

SIGNATURES: tuple[Signature, ...] = (*MEMORY, *GPU, *CLUSTER, *HUB, *CONFIG, *ENGINE)
"""On one line, the earlier signature wins."""

SUPERSEDES: tuple[tuple[str, str], ...] = (
    ("shm_too_small", "nccl_error"),
    ("oom_at_load", "nccl_error"),
    ("nccl_timeout", "nccl_error"),
    ("import_error", "unsupported_architecture"),
    ("cuda_runtime_mismatch", "import_error"),
    ("ecc_error", "illegal_memory_access"),
    ("gpu_fault", "illegal_memory_access"),
    ("ecc_error", "gpu_fault"),
    ("trust_remote_code", "transformers_mismatch"),
)
"""(cause, what it looks like): where a log shows both, the first counts, whatever their order."""

_GATE_WORDS = (
    *(
        "Error 80",
        "Error in i",
        "Error in m",
        "Errno ",
        "Error while",
        "EADDRINUSE",
        "EngineCore f",
        "EngineCore e",
        "EngineDead",
    ),
    *("Engine core", "Engine process", "Engine loop", "Engine background", "Exception in ASGI", "EngineGenerate"),
    *("AsyncLLM output", "AsyncEngineDead", "Application startup", "Application shutdown", "Available KV cache mem"),
    *("API server: shutdown", "Access to model", "AF_UNIX", "ActorDied", "AcceleratorError"),
    *("Background loop", "Bus error", "BackendCompilerFailed", "Bfloat16 is", "Bad Gateway"),
    *("CUDA", "CUBLAS_STATUS", "Cuda failure", "Could not", "Client Error", "Cannot", "CacheNotFound", "CppCompile"),
    *("Capturing", "Command '", "Connect", "Can't load", "Consistency check", "ContextTerminated", "Container "),
    *("DP Coordinator", "Driver/library", "Device string", "DefaultCPUAllocator", "DLL load", "DistBackend", "Did not"),
    *("Disk quota",),
    *(
        "Failed to",
        "Fatal Python",
        "FlashInfer requires",
        "FlashAttention only",
        "Finished server",
        "FP8 is",
        "Forbidden",
    ),
    *("Following weights", "Free memory on"),
    *("GPU is lost", "GPU has fallen", "Got fatal signal", "Gateway Time", "Gloo connect", "Graph capturing", "GLIBC"),
    *("HIP ", "Heartbeat monitor", "HTTPSConnectionPool", "HTTP 429", "HTTP status 429", "HeaderTooLarge"),
    *("Illegal instruction", "Initializing a", "Invalid ", "InvalidHeader", "Incorrect path", "Init"),
    *("KeyboardInterrupt", "Killed", "KV cache is needed", "KV cache scaling", "KV cache: ", "KV cache size"),
    *("LLM API server version", "LLM server version", "LoRA rank", "Loading ", "Liveness probe", "LoweringException"),
    *("LibRmVersionMismatch",),
    *("MQLLMEngine", "MQEngine", "MPClient", "Max retries", "Model architectures", "Model loading took", "Memory "),
    *("MetadataIncomplete", "MemoryError", "Model class", "Model does"),
    *("NCCL error", "NCCL_", "NCCL WARN", "NCCL Error", "NCCL watchdog", "NCCL operations", "NVIDIA", "NVML", "NVRM"),
    *(
        "No available",
        "No space left",
        "No CUDA",
        "No HIP",
        "No GPUs",
        "No such file",
        "No kernel",
        "No model",
        "No valid",
    ),
    *("No supported", "No compressed", "No module named", "Not enough free", "Ninja", "Network is", "Name or service"),
    *(
        "OOM",
        "Out of memory",
        "OutOfMemory",
        "OutOfResources",
        "OfflineMode",
        "Namespace(",
        "Operation not",
        "OpNamespace",
    ),
    *(
        "PLEG",
        "Permission denied",
        "Port ",
        "PTX",
        "Please pass",
        "Please u",
        "Please i",
        "Probe failed",
        "PytorchStreamReader",
    ),
    *("Quantization method", "RCCL ", "RPC call to", "Repo id must", "RayWorkerProc", "Ray cluster", "Read-only file"),
    *("Read", "SM 1", "Segfault", "Segmentation fault", "SIGSEGV", "SIGILL", "SIGBUS", "SIGKILL", "SafetensorError"),
    *("Shutting down", "Started", "Starting", "Startup probe", "Some NCCL", "Socket Timeout", "Service Unav"),
    *("The number of", "The model's max", "The quantization", "The repository", "The actor", "Task was killed"),
    *("Timed out", "Temporary failure", "Token is required", "Tokenizer class", "Too Many Requests", "Total number of"),
    *(
        "Transformers does not",
        "To serve at least",
    ),
    *("Traceback (most", "The client socket", "Tunnel connection", "A module that was", "Bytes object"),
    *("DataLoader worker", "GGUF magic", "Selected backend", "Unexpected bus", "Unable to connect", "# GPU blocks"),
    *("User-specified", "Unknown ", "Uncorrectable", "Unrecognized configuration", "UnpicklingError", "Unauthorized"),
    *("Uvicorn running", "Value error", "Watchdog", "Worker", "Waiting for creating", "World size", "We couldn't"),
    *(
        "We had to",
        "Xid",
    ),
    *("_OpNamespace", "_ERROR", "_dynamo.exc", "_inductor.exc"),
    *(": undefined symbol", ": {'", ": error: ", ": fatal error: Python.h", ": build stopped"),
    *(": Bus error",),
    "\u2588  version ",
)


_EXCEPTION = "(?<! E)rror"
"""An exception's name ends in `Error`; access lines with `500 Internal Server Error` are too many to look at."""


def _grouped(words: tuple[str, ...]) -> str:
    """Join the words by first character: the engine then tries one branch in most places, not hundreds."""
    groups: dict[str, list[str]] = defaultdict(list)
    for word in words:
        groups[re.escape(word[0])].append(re.escape(word[1:]))
    groups["E"].append(_EXCEPTION)
    return "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in groups.items())


GATE: re.Pattern[bytes] = re.compile(_grouped(_GATE_WORDS).encode())
"""Finds the places of a log where a line may matter. Nearly all of its words begin with a capital letter: rare in
logs, and therefore fast. A line without one is never looked at in bulk."""
