"""GPUs: driver, run-time libraries, kernels, faults."""

from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier, pattern


def _cuda_version(found: dict[str, str]) -> dict[str, str]:
    """Decode CUDA's integer: 12080 is 12.8."""
    number = int(found["code"])
    return {"cuda": f"{number // 1000}.{number % 1000 // 10}"}


_NEWER_TOOLKIT = (
    "this card's kernels need nvcc {need} or later: install that toolkit and set CUDA_HOME in `env`, or "
    "VLLM_USE_FLASHINFER_SAMPLER=0"
)

GPU = (
    Signature(
        "cuda_runtime_mismatch",
        pattern(r"libcudart\.so\.(?P<want>[\d.]+): cannot open shared object file"),
        "0.2 to 0.33, at import or at the first worker",
        "the build wants CUDA {want} libraries and does not find them: `python -c 'import torch; "
        "print(torch.__version__, torch.version.cuda)'` and `find / -name 'libcudart.so*'`; if the file is there put "
        "its directory into LD_LIBRARY_PATH in `env`, else install torch and vLLM for one and the same CUDA",
    ),
    Signature(
        "cuda_runtime_mismatch",
        pattern(
            r"lib(?:cublas(?:Lt)?|cudnn\w*|cusparse(?:Lt)?|nvrtc|nccl|cufft|curand|cusolver|nvJitLink|cupti)"
            r"[\w.-]*\.so[.\d]*: (?:cannot open shared object file|undefined symbol|version)"
        ),
        "libraries of another CUDA major in the environment",
    ),
    Signature(
        "cuda_runtime_mismatch",
        pattern(r"Expected max_shared_mem > 0|detected CUDA version .{0,40}mismatches the version that was used"),
        "kernels for CUDA 13 under a torch built for cu129, and the like",
    ),
    Signature(
        "cuda_driver_too_old",
        pattern(r"NVIDIA driver on your system is too old \(found version (?P<code>\d{1,9})\)"),
        "torch, all versions; 12080 means CUDA 12.8",
        "the driver offers CUDA {cuda} and this torch needs more: update the driver (580 or later for CUDA 13) and "
        "reboot, or install the build for an older CUDA (cu129)",
        adjust=_cuda_version,
    ),
    Signature(
        "cuda_driver_too_old",
        pattern(
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime|"
            r"cudaErrorInsufficientDriver|provided PTX was compiled with an unsupported toolchain"
        ),
        "torch and the CUDA run time, all versions",
    ),
    Signature(
        "cuda_driver_mismatch",
        pattern(
            r"Error 80[34]:|system has unsupported display driver / cuda driver combination|"
            r"forward compatibility was attempted on non supported HW|Driver/library version mismatch|"
            r"cudaErrorSystemDriverMismatch|cudaErrorCompatNotSupportedOnDevice|"
            r"NVML_ERROR_LIB_RM_VERSION_MISMATCH|NVMLError_LibRmVersionMismatch"
        ),
        "0.7 to 0.10; user-space driver against kernel module",
    ),
    Signature(
        "cuda_driver_mismatch",
        pattern(r"Error 802: system not yet initialized|cudaErrorSystemNotReady"),
        "NVSwitch hosts without a running fabric manager",
        "start nvidia-fabricmanager in the driver's version: `systemctl status nvidia-fabricmanager`",
    ),
    Signature(
        "no_gpu_visible",
        pattern(
            r"libcuda\.so\.1: cannot open|CUDA unknown error - this may be due to|not compiled with CUDA enabled|"
            r"Found no NVIDIA driver|Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device|"
            r"cudaErrorNoDevice|No HIP GPUs are available|NVIDIA-SMI has failed|NVML Shared Library Not Found|"
            r"Device string must not be empty|invalid device ordinal|could not select device driver"
        ),
        "0.2 to 0.33",
    ),
    Signature(
        "no_gpu_visible",
        pattern(r"World size \((?P<want>\d+)\) is larger than the number of available GPUs \((?P<have>\d+)\)"),
        "0.6 to 0.33",
        "{want} GPUs are asked for and {have} are visible: lower --tensor-parallel-size, or pass more GPUs "
        "(CUDA_VISIBLE_DEVICES, the container's --gpus)",
    ),
    Signature(
        "no_kernel_image",
        pattern(
            r"no kernel image is available|cudaErrorNoKernelImageForDevice|"
            r"no kernel image is available for execution|(?:HIP|CUDA) error: invalid device function"
        ),
        "all versions; 0.9 on a new card: ready first, dead with the first request",
    ),
    Signature(
        "capability_unsupported",
        pattern(
            r"Bfloat16 is only supported on GPUs with compute capability of at least [\d.]+\. "
            r"Your (?P<gpu>.+?) GPU has compute capability (?P<cap>\d+\.\d+)"
        ),
        "0.1 to 0.33",
        "set --dtype half: the {gpu} (compute capability {cap}) has no bfloat16",
    ),
    Signature(
        "capability_unsupported",
        pattern(r"Bfloat16 is only supported on GPUs"),
        "0.1 to 0.33",
        "set --dtype half: this GPU has no bfloat16",
    ),
    Signature(
        "capability_unsupported",
        pattern(
            r"quantization method (?P<method>\S+) is not supported for the current GPU\. "
            r"Minimum capability: (?P<need>\d+)\. Current capability: (?P<have>\d+)"
        ),
        "0.2 to 0.33",
        "{method} needs compute capability {need} and this GPU has {have}: take a checkpoint in another quantization, "
        "or another GPU",
    ),
    Signature(
        "capability_unsupported",
        pattern(
            r"FlashInfer requires GPUs with sm\d+ or higher|is not supported for the current GPU|"
            r"not supported on (?:this|the current) GPU|requires (?:GPUs? with )?compute capability|"
            r"No valid attention backend found|out of resource: shared memory|"
            r"FP8 is not supported on|fp8e4nv not supported in this architecture|"
            r"No \w+ MoE backend supports|compute capability not supported|"
            r"is only supported on .{0,40}(?:Hopper|Ampere|Blackwell|SM ?\d+)|FlashAttention only supports Ampere"
        ),
        "0.2 to 0.33",
    ),
    Signature(
        "flashinfer_jit",
        pattern(
            r"Could not find nvcc|No supported CUDA architectures found for major versions|"
            r"ninja: build stopped|Ninja build failed|Ninja is required to load C\+\+ extensions|"
            r"Command '\[?'?ninja|flashinfer.{0,80}(?:JIT|jit).{0,40}(?:fail|error)|nvcc fatal|"
            r"No such file or directory: '\S*(?:nvcc|ninja)'|CUDA_HOME environment variable is not set"
        ),
        "0.11 to 0.33: kernels are built on the host at the first start",
    ),
    Signature(
        "flashinfer_jit",
        pattern(r"^(?:\w+Error: )SM 1[0-9]\.x requires CUDA >= (?P<need>\d+(?:\.\d+)?)"),
        "0.23 to 0.26, where nothing caught it; printed by what was caught as well",
        _NEWER_TOOLKIT,
        tier=Tier.VAGUE,
        start_only=True,
    ),
    Signature(
        "flashinfer_jit",
        pattern(r"SM 1[0-9]\.x requires CUDA >= (?P<need>\d+(?:\.\d+)?)"),
        "0.23 to 0.26; a fallback notice, harmless while the start goes on",
        _NEWER_TOOLKIT,
        kind=Kind.CONTEXT,
        quiet=True,
    ),
    Signature(
        "ecc_error",
        pattern(
            r"uncorrectable (?:ECC|NVLink) error|cudaErrorECCUncorrectable|Uncorrectable ECC|"
            r"NVRM: Xid.{0,60}: (?:48|63|64|94|95)\b"
        ),
        "CUDA and the kernel log, all versions",
    ),
    Signature(
        "gpu_fault",
        pattern(
            r"NVRM: Xid.{0,60}: (?:32|38|56|62|69|74|79|109|119|120|121|140|143|154)\b|"
            r"Unable to determine the device handle for (?:GPU|gpu)|"
            r"GPU has fallen off the bus|GPU is lost|NVMLError_GpuIsLost|unspecified launch failure|"
            r"cudaErrorLaunchFailure|CUDA error: (?:unknown error|hardware stack error|device not ready)|"
            r"CUDA error: CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"
        ),
        "0.6 to 0.33, and the kernel log",
    ),
    Signature(
        "illegal_memory_access",
        pattern(
            r"illegal memory access|cudaErrorIllegalAddress|CUDA error: misaligned address|"
            r"device-side assert triggered|CUDA error: an illegal instruction|CUBLAS_STATUS_EXECUTION_FAILED|"
            r"NVRM: Xid.{0,60}: (?:13|31)\b|Memory access fault by GPU node"
        ),
        "0.4 to 0.33; the address is reported late, so the frame above it is not to be trusted",
    ),
    Signature(
        "illegal_instruction",
        pattern(r"Fatal Python error: Illegal instruction|^Illegal instruction\b|\bSIGILL\b|exit code:? -4\b"),
        "0.32 on CPUs (measured): bf16 attention on a VM without AMX, at the first request",
    ),
    Signature(
        "segfault",
        pattern(r"Segfault encountered|Segmentation fault|\bSIGSEGV\b|exit code:? -11\b"),
        "0.8 to 0.33",
    ),
    Signature(
        "segfault",
        pattern(
            r"Fatal Python error: Aborted|free\(\): invalid|double free or corruption|malloc\(\): |"
            r"terminate called after throwing"
        ),
        "native code gave up; the cause, if any, stands above",
        tier=Tier.VAGUE,
    ),
)
