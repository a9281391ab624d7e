"""Explanations: driver, CUDA libraries, kernels, faults of the card."""

from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation

_TORCH = Check(
    "python -c 'import torch; print(torch.__version__, torch.version.cuda)'",
    "the CUDA that torch was built for (+cu129 means 12.9, +cu130 means 13.0)",
)
_DRIVER = Check("nvidia-smi | head -4", "the driver's version, and the newest CUDA that it offers")
_KERNEL_LOG = Check("journalctl -k | grep -i 'NVRM: Xid'", "the fault's number and the card's address")

GPU = (
    Explanation(
        "cuda_runtime_mismatch",
        "CUDA libraries of another version than vLLM's kernels were built for",
        "vLLM's kernels, torch and the nvidia-* packages belong to one CUDA major. A missing libcudart.so.13 or .12 "
        "means a wheel of the other major, or a library that is there and not on the search path. Typical on "
        "Blackwell: torch for cu129 under kernels for CUDA 13 (`Expected max_shared_mem > 0`), and an environment "
        "that a later `pip install` flipped to another torch.",
        (
            _TORCH,
            Check("find / -name 'libcudart.so*' -not -path '/proc/*'", "whether the wanted number exists anywhere"),
            Check("pip list | grep -iE 'cu1[23]|^torch|vllm'", "packages for two CUDA majors side by side"),
        ),
        (
            (
                "install vLLM and torch for one CUDA into a fresh environment (`vllm-supervisor install-vllm` picks "
                "the "
                "build that suits the card)"
            ),
            (
                "the library exists but is not found: put its directory (…/site-packages/nvidia/cu13/lib, or the "
                "toolkit's lib64) into LD_LIBRARY_PATH in `env`"
            ),
            "no build for CUDA 13 works here: take the fallback build cu129, torch and vLLM both",
            (
                "after any `pip install` in that environment look at torch's version again: a dependency may have "
                "replaced "
                "it"
            ),
        ),
    ),
    Explanation(
        "cuda_driver_too_old",
        "the NVIDIA driver is older than the CUDA of this torch build",
        "A torch built for CUDA 13 (cu130) needs driver 580 or later; a driver that offers 12.8 (shown as 12080) "
        "cannot run it. Only a new driver or an older build helps.",
        (_DRIVER, _TORCH),
        (
            "update the driver to 580 or later and reboot, or install the cu129 (or cu128) build of torch and vLLM",
            "in containers the driver is the host's: updating the image changes nothing",
        ),
    ),
    Explanation(
        "cuda_driver_mismatch",
        "the driver's user-space library and its kernel module do not fit together",
        "Error 803 or 804: the libcuda that was loaded comes from another driver version than the running module, "
        "after an update without reboot, from a `compat` directory in a container, or from a wrong mount.",
        (
            Check("cat /proc/driver/nvidia/version; nvidia-smi", "two versions, or `Driver/library version mismatch`"),
            Check("ldconfig -p | grep libcuda.so; echo $LD_LIBRARY_PATH", "a path with `compat` in it"),
        ),
        (
            "reboot after the driver update, or reload the nvidia modules",
            "remove the cuda-compat directory from LD_LIBRARY_PATH: it serves data-centre cards only",
            "error 802 on NVSwitch machines: start nvidia-fabricmanager in the driver's version",
        ),
    ),
    Explanation(
        "no_gpu_visible",
        "no usable GPU is visible to the engine's user",
        "The driver is not loaded, the devices were not passed into the container, CUDA_VISIBLE_DEVICES names none, or "
        "fewer GPUs are visible than the parallel sizes ask for. Right after boot the driver may only be late.",
        (
            Check("nvidia-smi -L", "no devices, or an error"),
            Check("ls -l /dev/nvidia*; echo $CUDA_VISIBLE_DEVICES", "no device files, no permission, or an empty list"),
        ),
        (
            "make the GPU visible: load the driver, `docker run --gpus all`, a correct CUDA_VISIBLE_DEVICES in `env`",
            "let the unit start after the driver (nvidia-persistenced.service)",
            "a package named pynvml beside nvidia-ml-py can break the detection: remove it",
        ),
    ),
    Explanation(
        "no_kernel_image",
        "this build holds no kernels for this GPU's architecture",
        "The wheel's list of architectures ends before a new card (sm_120, sm_121) or begins after an old one (sm_60, "
        "sm_70). It may show only with the first request, after /health said 200.",
        (
            Check(
                "python -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())'",
                "the card's sm_XY is not in the list",
            ),
            _DRIVER,
        ),
        (
            (
                "install a build that has the card's architecture: a newer vLLM with its own torch for new cards, an "
                "older "
                "vLLM or a source build (TORCH_CUDA_ARCH_LIST) for old ones"
            ),
            "Blackwell (SM 12.x): kernels that are built on the host need CUDA 12.9 or later",
        ),
    ),
    Explanation(
        "capability_unsupported",
        "the GPU's compute capability does not allow what was asked for",
        "bfloat16 needs 8.0, fp8 needs 8.9 or 9.0, some quantizations and attention kernels need more than the card "
        "has, or more shared memory than it offers.",
        (Check("nvidia-smi --query-gpu=name,compute_cap --format=csv", "the number that the message compares"),),
        (
            "--dtype half for bfloat16 on cards below 8.0; another quantization for fp8 or AWQ on old cards",
            (
                "`FlashInfer requires GPUs with sm75`: VLLM_USE_FLASHINFER_SAMPLER=0 in `env`; also seen on SM 12.x "
                "under "
                "an old CUDA toolkit"
            ),
        ),
    ),
    Explanation(
        "flashinfer_jit",
        "kernels that FlashInfer builds on this host could not be built",
        "FlashInfer compiles kernels at the first start. Without nvcc, with one too old for the card (SM 12.x wants "
        "CUDA 12.9), or with a broken CUDA_HOME the build fails. The notice `SM 12.x requires CUDA >= 12.9` alone is "
        "harmless: another sampler is used then.",
        (
            Check("nvcc --version; echo $CUDA_HOME", "no nvcc, one below 12.9, or a path with a stray colon"),
            Check("systemctl show UNIT -p Environment", "whether the service sees what your shell sees"),
        ),
        (
            (
                "set VLLM_USE_FLASHINFER_SAMPLER=0 (in `env`), or install the CUDA toolkit (12.9 or later for "
                "Blackwell) "
                "and set CUDA_HOME"
            ),
            "the packages flashinfer-cubin and flashinfer-jit-cache bring built kernels: none is built then",
            "remove ~/.cache/flashinfer after changing the toolkit",
        ),
    ),
    Explanation(
        "ecc_error",
        "the GPU's memory has an uncorrectable error",
        "Memory cells failed (Xid 48, 63, 64, 94, 95). The driver retires the page, often only after a reset. One "
        "restart may work; a second error means the card.",
        (
            _KERNEL_LOG,
            Check("nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER", "uncorrected errors, pending retirements"),
        ),
        ("drain the host, reset the GPU (`nvidia-smi --gpu-reset`) or reboot; replace the card if it comes back",),
    ),
    Explanation(
        "gpu_fault",
        "the GPU itself failed",
        "The card fell off the bus (Xid 79), its firmware hung (119, 120), a link failed (74), or a launch failed "
        "without a cause in the program. Restarting the engine does not bring a lost card back.",
        (_KERNEL_LOG, Check("nvidia-smi", "ERR!, a missing card, or a hang")),
        (
            "reset the GPU or reboot the host; look at power, seating, temperature if it comes back",
            "a card that is gone can be left out with CUDA_VISIBLE_DEVICES until it is repaired",
        ),
    ),
    Explanation(
        "illegal_memory_access",
        "a GPU kernel touched memory it may not",
        "A bug in a kernel, or a card that computes wrongly. The error is reported late, so the Python frame above "
        "it is "
        "innocent. Everything in that process is lost.",
        (
            Check("CUDA_LAUNCH_BLOCKING=1 (in `env`), once", "the frame of the kernel that really failed"),
            _KERNEL_LOG,
        ),
        (
            (
                "restart; if it repeats, change one thing at a time: --enforce-eager, another attention backend, no "
                "prefix caching, another vLLM version"
            ),
            "Xid 13 and 31 fit a bug; 48, 79 or 94 beside it mean the card",
        ),
    ),
    Explanation(
        "illegal_instruction",
        "the processor lacks an instruction that the build uses",
        "CPU builds use AVX-512 or AMX; a virtual machine may announce AMX without allowing it. Seen with bf16 "
        "attention on the first request, after /health said 200.",
        (Check("grep -o -m1 -E 'avx512f|amx_bf16|amx_tile' /proc/cpuinfo | sort -u", "what the processor announces"),),
        (
            "--dtype float32 on such a processor, or a build without the instruction",
            "keep `startup.warmup` on: without it the crash comes with the first request, again and again",
        ),
    ),
    Explanation(
        "segfault",
        "native code crashed",
        "A segmentation fault or abort in a library: a kernel, a tokenizer, a communication library. vLLM's own log "
        "holds only the death that followed.",
        (
            Check("coredumpctl info", "the library at the top of the stack"),
            Check("PYTHONFAULTHANDLER=1 (in `env`)", "the Python frame at the next crash"),
        ),
        ("restart; if it repeats, keep the core dump and change the version of the library at its top",),
    ),
)
