"""What each check says about which host: check, changes, result, words of the finding, words of its remedy."""

from dataclasses import replace
from typing import Any, NamedTuple

from tests.domain.doctor.hosts import GB, GIB, HIDDEN, NO_DRIVER, card, cards, holder
from vllm_supervisor.domain.doctor.facts import Clock, Folder, Library, Limits, ModelConfig, Port, Shm, Unknown


class Row(NamedTuple):
    """One host and what is found; `words` stand in the detail, `remedy` in the remedy."""

    name: str
    result: str
    words: str
    changes: dict[str, Any]
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.result} {self.words}"


CPU = {"torch_cuda": None, "torch": "2.13.0+cpu", "runtime": None}
AMPERE = cards(card(0, name="A100", capability=(8, 0)), card(1, name="A100", capability=(8, 0)))
TURING = cards(card(0, name="T4", capability=(7, 5)), card(1, name="T4", capability=(7, 5)))
ABSENT = {"complete": False, "path": None, "bytes": 0}
COMMIT = "a" * 40


def full(**changes: Any) -> Any:
    """Cards with something on the first one."""
    return cards(card(0, **changes), card(1))


INSTALL = [
    Row("launcher", "ok", "/venv/bin/vllm", {}),
    Row("launcher", "fail", "no", {"launcher": {"path": None, "why_not": "no", "remedy": "do"}}, "do"),
    Row("launcher", "warn", "neither with #! nor", {"launcher": {"path": "/x", "program": False}}, "install-vllm"),
    Row("vllm", "ok", "0.32.0 (/venv/bin/python)", {}),
    Row("vllm", "fail", "not installed for /venv/bin/python", {"install": {"vllm": None}}, "install-vllm"),
    Row("vllm", "skip", "it hides", {"install": HIDDEN}),
    Row("vllm", "fail", "does not work", {"install": Unknown("python does not work", absent=True)}, "launcher"),
    Row("torch-cuda", "ok", "built for CUDA 13.0, driver 580.65.06 offers 13.0", {}),
    Row("torch-cuda", "ok", "without CUDA", {"install": CPU, "cards": NO_DRIVER}),
    Row("torch-cuda", "warn", "there is a NVIDIA H100", {"install": CPU}, "install-vllm"),
    Row("torch-cuda", "warn", "offers 12.4", {"install": {"torch_cuda": "12.9"}, "cards": cards(cuda=(12, 4))}, "12.9"),
    Row("torch-cuda", "fail", "offers 12.8", {"cards": cards(driver="570.1", cuda=None)}, "580 or later"),
    Row("torch-cuda", "fail", "offers 12.9", {"cards": cards(cuda=(12, 9))}, "a build for CUDA 12"),
    Row("torch-cuda", "fail", "torch is not installed", {"install": {"torch": None}}, "install-vllm"),
    Row("torch-cuda", "ok", "13.0", {"install": {"torch_cuda": "12.8"}}),
    Row("torch-cuda", "skip", "wants CUDA 13.0; nvidia-smi", {"cards": NO_DRIVER}),
    Row("torch-cuda", "skip", "it hides", {"install": HIDDEN}),
    Row("torch-cuda", "skip", "ROCm", {"install": {"torch_cuda": None, "torch_hip": "6.3"}}),
    Row("torch-cuda", "skip", "is not known", {"cards": cards(driver="470.1", cuda=None)}),
    Row("libcudart", "ok", "libcudart.so.13 is /n/", {}),
    Row("libcudart", "ok", "not needed", {"install": CPU}),
    Row("libcudart", "skip", "no extension", {"install": {"runtime": None}}),
    Row("libcudart", "skip", "it hides", {"install": HIDDEN}),
    Row("libcudart", "fail", "nowhere", {"install": {"runtime": Library("libcudart.so.12")}}, "install-vllm"),
    Row(
        "libcudart",
        "fail",
        "in /s/lib, where the loader does not look",
        {"install": {"runtime": Library("libcudart.so.12", misplaced="/s/lib/libcudart.so.12")}},
        "LD_LIBRARY_PATH: /s/lib",
    ),
    Row(
        "libcudart",
        "fail",
        "torch is built for CUDA 13.0",
        {"install": {"runtime": Library("libcudart.so.12", "/l/libcudart.so.12")}},
        "of one CUDA",
    ),
    Row("vllm-use-v1", "ok", "not set", {}),
    Row("vllm-use-v1", "warn", "older", {"wanted": {"use_v1": "1"}}, "remove VLLM_USE_V1"),
    Row("vllm-use-v1", "fail", "no longer has", {"wanted": {"use_v1": "0"}}, "remove VLLM_USE_V1"),
    Row("vllm-use-v1", "warn", "older", {"wanted": {"use_v1": "0"}, "install": {"vllm": "0.9.2"}}, "remove"),
]

CARDS = [
    Row("gpus", "ok", "GPU 0 NVIDIA H100, 80.0 GiB; GPU 1", {}),
    Row("gpus", "ok", "none, and this build needs none", {"install": CPU, "cards": NO_DRIVER}),
    Row("gpus", "skip", "AMD", {"install": {**CPU, "torch_hip": "6.3"}, "cards": NO_DRIVER}),
    Row("gpus", "skip", "it hides", {"cards": HIDDEN}),
    Row("gpus", "skip", "MIG", {"wanted": {"visible_devices": "MIG-1"}}),
    Row("gpus", "fail", "needs an NVIDIA GPU: nvidia-smi", {"cards": NO_DRIVER}, "--gpus all"),
    Row("gpus", "fail", "shows none of 2", {"wanted": {"visible_devices": "7"}}, "CUDA_VISIBLE_DEVICES"),
    Row("gpus", "fail", "has no GPU", {"cards": replace(cards(), cards=())}, "nvidia-smi -L"),
    Row("utilization", "ok", "0.92 (vLLM's default)", {}),
    Row("utilization", "ok", "0.9 (vLLM's default)", {"install": {"vllm": "0.19.1"}}),
    Row("utilization", "ok", "0.94 (--gpu", {"wanted": {"utilization": 0.94}}),
    Row("utilization", "ok", "no GPU", {"install": CPU}),
    Row("utilization", "warn", "0.95 and up", {"wanted": {"utilization": 0.95}}, "0.92"),
    Row("utilization", "fail", "is 1.5", {"wanted": {"utilization": 1.5}}, "0.90"),
    Row("utilization", "fail", "is 0", {"wanted": {"utilization": 0.0}}, "above 0"),
    Row("utilization", "skip", "it hides", {"install": HIDDEN}),
    Row("utilization", "fail", "is 1.5", {"install": HIDDEN, "wanted": {"utilization": 1.5}}, "0.90"),
    Row("gpu-memory", "ok", "79.0 GiB free", {}),
    Row("gpu-memory", "fail", "GPU 0: 70.0 GiB of 80.0 GiB free, 73.6", {"cards": full(free=70 * GIB)}, "0.86"),
    Row("gpu-memory", "fail", "GPU 0: 0.0", {"cards": full(free=0)}, "CUDA_VISIBLE_DEVICES"),
    Row(
        "gpu-memory",
        "ok",
        "free",
        {"cards": full(free=2 * GIB, holders=(holder(bytes=77 * GIB, ours=True),))},
    ),
    Row("gpu-memory", "skip", "it hides", {"cards": HIDDEN}),
    Row("gpu-memory", "skip", "shared with the CPU", {"cards": full(total=0, free=0)}),
    Row("gpu-memory", "skip", "no GPU is visible", {"wanted": {"visible_devices": ""}}),
    Row("gpu-holders", "ok", "nobody", {}),
    Row("gpu-holders", "ok", "nobody but this instance", {"cards": full(holders=(holder(ours=True),))}),
    Row("gpu-holders", "warn", "GPU 0: pid 7 (python) holds 4.0 GiB", {"cards": full(holders=(holder(),))}, "kill 7"),
    Row("gpu-holders", "warn", "holds memory", {"cards": full(holders=(holder(bytes=None),))}, "kill 7"),
    Row("gpu-holders", "skip", "it hides", {"cards": HIDDEN}),
    Row("other-instances", "ok", "no other", {"cards": full(holders=(holder(),))}),
    Row(
        "other-instances",
        "ok",
        "no other",
        {
            "cards": full(holders=(holder(instance=9, utilization=0.4), holder(8, instance=9, utilization=0.4))),
            "wanted": {"utilization": 0.5},
        },
    ),
    Row(
        "other-instances",
        "warn",
        "0.56 here and 0.4 of pid 9 add up to 0.96",
        {"cards": full(holders=(holder(instance=9, utilization=0.4),)), "wanted": {"utilization": 0.56}},
        "lower",
    ),
    Row("other-instances", "fail", "add up to 1.84", {"cards": full(holders=(holder(instance=9),))}, "lower"),
    Row("other-instances", "skip", "it hides", {"cards": HIDDEN}),
    Row("gpu-models", "ok", "NVIDIA H100", {}),
    Row("gpu-models", "ok", "not needed", {"wanted": {"tensor": 1}}),
    Row("gpu-models", "warn", "A100, NVIDIA H100", {"cards": full(name="A100")}, "PCI_BUS_ID"),
    Row("gpu-models", "skip", "it hides", {"cards": HIDDEN}),
    Row("gpu-links", "ok", "NVLink", {}),
    Row("gpu-links", "ok", "not needed", {"wanted": {"tensor": 1}}),
    Row("gpu-links", "warn", "0-1 PHB", {"cards": cards(links={(0, 1): "PHB"})}, "--pipeline-parallel-size"),
    Row("gpu-links", "skip", "it hides", {"cards": cards(links=HIDDEN)}),
    Row("gpu-links", "skip", "it hides", {"cards": HIDDEN}),
    Row("tensor-parallel", "ok", "2 of 2 GPUs", {}),
    Row("tensor-parallel", "ok", "2 of 2 GPUs", {"wanted": {"tensor": 4, "nodes": 2}}),
    Row("tensor-parallel", "fail", "4 GPUs are asked for here (tensor x", {"wanted": {"tensor": 4}}, "at most 2"),
    Row("tensor-parallel", "fail", "1 visible", {"wanted": {"visible_devices": "1"}}, "at most 1"),
    Row("tensor-parallel", "skip", "Ray", {"wanted": {"executor": "ray"}}),
    Row("tensor-parallel", "skip", "it hides", {"cards": HIDDEN}),
    Row("capability", "ok", "9.0, no quantization", {}),
    Row("capability", "ok", "quantization awq needs 7.5", {"wanted": {"quantization": "awq"}}),
    Row("capability", "fail", "needs 8.0", {"wanted": {"quantization": "mxfp4"}, "cards": TURING}, "quantization"),
    Row(
        "capability",
        "fail",
        "fp_quant needs 10.0",
        {"model": {"config": ModelConfig(quantization="fp_quant")}},
        "checkpoint",
    ),
    Row("capability", "fail", "--dtype bfloat16", {"wanted": {"dtype": "bfloat16"}, "cards": TURING}, "--dtype half"),
    Row("capability", "fail", "vLLM needs 7.0", {"cards": full(capability=(6, 1))}, "another GPU"),
    Row("capability", "skip", "is not known here", {"wanted": {"quantization": "new"}}),
    Row("capability", "skip", "does not say", {"cards": cards(card(capability=None))}),
    Row("capability", "skip", "it hides", {"cards": HIDDEN}),
    Row("fp8", "ok", "not asked for", {}),
    Row("fp8", "ok", "quantization fp8, 9.0", {"wanted": {"quantization": "fp8"}}),
    Row("fp8", "warn", "before Ada", {"wanted": {"quantization": "fp8"}, "cards": AMPERE}, "AWQ"),
    Row("fp8", "warn", "--kv-cache-dtype fp8", {"wanted": {"kv_cache_dtype": "fp8"}, "cards": AMPERE}, "remove"),
    Row("fp8", "warn", "the model o/x-FP8", {"wanted": {"model": "o/x-FP8"}, "cards": AMPERE}, "AWQ"),
    Row("fp8", "skip", "it hides", {"cards": HIDDEN}),
    Row("fp8", "skip", "does not say", {"wanted": {"quantization": "fp8"}, "cards": cards(card(capability=None))}),
]

MODEL = [
    Row("attention-heads", "ok", "32 heads on 2", {}),
    Row("attention-heads", "ok", "not needed", {"wanted": {"tensor": 1}}),
    Row("attention-heads", "fail", "32 attention heads", {"wanted": {"tensor": 3}}, "1, 2, 4, 8, 16"),
    Row("attention-heads", "skip", "it hides", {"model": {"config": HIDDEN}}),
    Row("attention-heads", "skip", "does not say", {"model": {"config": ModelConfig()}}),
    Row("attention-heads", "skip", "it hides", {"model": HIDDEN}),
    Row("model", "ok", "14.0 GB", {}),
    Row("model", "ok", "will be downloaded to /hub", {"model": ABSENT}),
    Row("model", "ok", "3.0 GB of it", {"model": {**ABSENT, "bytes": 3 * GB}}),
    Row("model", "fail", "does not exist, or vllm may not", {"model": {**ABSENT, "local": True}}, "engine.vllm.model"),
    Row("model", "fail", "no complete weights", {"model": {"complete": False, "local": True}}, "copy"),
    Row("model", "fail", "offline mode", {"model": ABSENT, "wanted": {"offline": True}}, "hf download o/m-7b"),
    Row("model", "skip", "it hides", {"model": HIDDEN}),
    Row("token", "ok", "the model is here", {}),
    Row("token", "ok", "offline", {"model": ABSENT, "wanted": {"offline": True}}),
    Row("token", "ok", "there is a token", {"model": {**ABSENT, "token": True}}),
    Row("token", "ok", "none seems", {"model": ABSENT}),
    Row("token", "warn", "about 140 GB", {"model": ABSENT, "wanted": {"model": "o/m-70B"}}, "HF_TOKEN"),
    Row(
        "token", "fail", "is gated", {"model": ABSENT, "wanted": {"model": "meta-llama/Llama-3.1-8B"}}, "hf auth login"
    ),
    Row("token", "skip", "it hides", {"model": HIDDEN}),
    Row("revision", "ok", COMMIT, {}),
    Row("revision", "ok", "a folder", {"model": {"local": True}}),
    Row("revision", "warn", "no --revision", {"wanted": {"revision": None}}, f"--revision {COMMIT}"),
    Row("revision", "warn", "may move", {"wanted": {"revision": "main"}, "model": ABSENT}, "--revision COMMIT"),
    Row("revision", "skip", "it hides", {"model": HIDDEN}),
    Row("disk", "ok", "nothing is to be downloaded", {}),
    Row("disk", "ok", "nothing", {"model": {**ABSENT, "free": GB}, "wanted": {"offline": True}}),
    Row("disk", "ok", "about 14 GB", {"model": ABSENT}),
    Row("disk", "warn", "about 14 GB", {"model": {**ABSENT, "free": 15 * GB}}, "HF_HOME"),
    Row("disk", "fail", "about 14 GB", {"model": {**ABSENT, "free": 9 * GB}}, "HF_HOME"),
    Row("disk", "ok", "about 4 GB", {"model": {**ABSENT, "bytes": 10 * GB, "free": 9 * GB}}),
    Row(
        "disk",
        "warn",
        "1.0 GB free for the x in /c",
        {"host": {"folders": (Folder("x", "/c", "X_HOME", free=GB),)}},
        "set X_HOME",
    ),
    Row(
        "disk",
        "warn",
        "1.0 GB free for the x in /c",
        {"host": {"folders": (Folder("x", "/c", "X_HOME", free=GB),)}, "model": ABSENT},
        "set X_HOME",
    ),
    Row("disk", "skip", "its name does not tell", {"model": ABSENT, "wanted": {"model": "o/m"}}),
    Row("disk", "skip", "it hides", {"model": {**ABSENT, "free": HIDDEN}}),
    Row("disk", "skip", "it hides", {"model": HIDDEN}),
]


def limits(files: int | None, locked: int | None, processes: int | None) -> dict[str, Any]:
    """A host with these limits."""
    return {"host": {"limits": Limits("of the unit", files, locked, processes)}}


HOSTS = [
    Row("shm", "ok", "30.0 GiB of 32.0 GiB", {}),
    Row("shm", "ok", "needs little", {"host": {"shm": Shm(64 << 20, 64 << 20)}, "wanted": {"tensor": 1}}),
    Row("shm", "warn", "16 GiB are wanted", {"host": {"shm": Shm(8 * GIB, 8 * GIB)}}, "size=16G"),
    Row("shm", "fail", "too little", {"host": {"shm": Shm(64 << 20, 64 << 20)}}, "--shm-size=16g"),
    Row("shm", "skip", "it hides", {"host": {"shm": HIDDEN}}),
    Row("port", "ok", "127.0.0.1 port 8000 is free", {}),
    Row("port", "ok", "own engine", {"host": {"port": Port("held by pid 3", "stop it", ours=True)}}),
    Row("port", "fail", "held by pid 3", {"host": {"port": Port("held by pid 3", "stop it")}}, "stop it"),
    Row("exposure", "ok", "only this host", {}),
    Row("exposure", "ok", "with a key", {"wanted": {"host": "0.0.0.0", "has_key": True}}),
    Row("exposure", "warn", "anyone can use it", {"wanted": {"host": "0.0.0.0"}}, "engine.vllm.api_key"),
    Row("exposure", "warn", "on 10.1.2.3 without", {"wanted": {"host": "10.1.2.3"}}, "127.0.0.1"),
    Row("journal", "ok", "a file", {}),
    Row("journal", "ok", "may read it", {"host": {"journal": True}}),
    Row("journal", "warn", "may not read the journal", {"host": {"journal": False}}, "SupplementaryGroups="),
    Row("folders", "ok", "log, vLLM's cache: writable by vllm", {}),
    Row(
        "folders",
        "fail",
        "log /l: read-only (as vllm)",
        {"host": {"folders": (Folder("log", "/l", "log_file", "read-only"),)}},
        "install -d -o vllm /l",
    ),
    Row("open-files", "ok", "65535 (of the unit)", {}),
    Row("open-files", "warn", "1024 open files", limits(1024, None, None), "LimitNOFILE=65535"),
    Row("locked-memory", "ok", "unlimited", {}),
    Row("locked-memory", "warn", "8192 KiB", limits(None, 8 << 20, None), "LimitMEMLOCK=infinity"),
    Row("locked-memory", "ok", "8192 KiB", {**limits(None, 8 << 20, None), "wanted": {"tensor": 1}}),
    Row("processes", "ok", "unlimited", {}),
    Row("processes", "warn", "100 processes", limits(None, None, 100), "LimitNPROC=16384"),
    Row("vllm-port", "ok", "not set", {}),
    Row("vllm-port", "warn", "internal ports", {"wanted": {"vllm_port": "9000"}}, "unset VLLM_PORT"),
    Row("vllm-port", "fail", "the API's port", {"wanted": {"vllm_port": "8000"}}, "unset VLLM_PORT"),
    Row("vllm-port", "fail", "Kubernetes", {"wanted": {"vllm_port": "tcp://10.0.0.1:80"}}, "enableServiceLinks"),
    Row("tmpdir", "ok", "/tmp", {}),
    Row("tmpdir", "ok", "/", {"host": {"socket_folder": "/" + "x" * 69}}),
    Row("tmpdir", "fail", "108 bytes", {"host": {"socket_folder": "/" + "x" * 70}}, "VLLM_RPC_BASE_PATH"),
    Row("clock", "ok", "synchronized", {}),
    Row("clock", "warn", "in step", {"host": {"clock": Clock(1.8e9, 0, synchronized=False)}}, "set-ntp"),
    Row("clock", "warn", "a day behind", {"host": {"clock": Clock(1.8e9, 1.81e9, synchronized=True)}}, "set-ntp"),
    Row("clock", "fail", "before this program", {"host": {"clock": Clock(1e9, 0, synchronized=True)}}, "set-ntp"),
    Row("clock", "skip", "does not say", {"host": {"clock": Clock(1.8e9, 0, synchronized=None)}}),
]

ROWS = [*INSTALL, *CARDS, *MODEL, *HOSTS]
