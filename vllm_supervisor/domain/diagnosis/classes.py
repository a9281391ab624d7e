"""The vocabulary: every class of failure, its default verdict, and whether a log alone can show it."""

from dataclasses import dataclass

from vllm_supervisor.domain.retry import Retry


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One word of the vocabulary."""

    name: str
    retry: Retry
    from_log_alone: bool = True


_P, _O, _T, _1 = Retry.PERMANENT, Retry.NEEDS_OPERATOR, Retry.TRANSIENT, Retry.TRANSIENT_ONCE

CLASSES: dict[str, FailureClass] = {
    failure.name: failure
    for failure in (
        FailureClass("bad_cli_argument", _P),
        FailureClass("capability_unsupported", _P),
        FailureClass("cuda_driver_mismatch", _O),
        FailureClass("cuda_driver_too_old", _P),
        FailureClass("cuda_runtime_mismatch", _P),
        FailureClass("disk_full", _O),
        FailureClass("ecc_error", _O),
        FailureClass("engine_core_died", _1),
        FailureClass("engine_core_init_failed", _1),
        FailureClass("execute_model_timeout", _1),
        FailureClass("exit_0_on_engine_death", _1, from_log_alone=False),
        FailureClass("flashinfer_jit", _P),
        FailureClass("gpu_fault", _O),
        FailureClass("gpu_memory_not_free", _1),
        FailureClass("hang_health_ok", _T),
        FailureClass("health_flapping", _T, from_log_alone=False),
        FailureClass("hf_401_gated", _O),
        FailureClass("hf_offline", _P),
        FailureClass("hf_rate_limit", _T),
        FailureClass("host_oom_kill", _O),
        FailureClass("illegal_instruction", _P),
        FailureClass("illegal_memory_access", _1),
        FailureClass("import_error", _P),
        FailureClass("killed_by_probe", _T),
        FailureClass("kv_cache_too_small", _P),
        FailureClass("lora_rank_error", _P),
        FailureClass("max_model_len_error", _P),
        FailureClass("model_not_found", _P),
        FailureClass("nccl_error", _O),
        FailureClass("nccl_timeout", _1),
        FailureClass("no_gpu_visible", _O),
        FailureClass("no_kernel_image", _P),
        FailureClass("oom_at_load", _P),
        FailureClass("oom_runtime", _1),
        FailureClass("orphan_gpu_processes", _O, from_log_alone=False),
        FailureClass("permission_denied", _O),
        FailureClass("port_in_use", _T),
        FailureClass("quantization_mismatch", _P),
        FailureClass("ray_not_ready", _T),
        FailureClass("readiness_gap", _T, from_log_alone=False),
        FailureClass("segfault", _1),
        FailureClass("shm_too_small", _P),
        FailureClass("sigterm_lost_in_startup", _T, from_log_alone=False),
        FailureClass("slow_shutdown", _T, from_log_alone=False),
        FailureClass("startup_hang", _T, from_log_alone=False),
        FailureClass("startup_slow", _T, from_log_alone=False),
        FailureClass("startup_timeout", _1),
        FailureClass("tensor_parallel_divisibility", _P),
        FailureClass("torch_compile_failure", _1),
        FailureClass("transformers_mismatch", _P),
        FailureClass("trust_remote_code", _O),
        FailureClass("unsupported_architecture", _P),
        FailureClass("weights_corrupt", _P),
        FailureClass("worker_died", _1),
        FailureClass("zmq_ipc_error", _P),
    )
}
