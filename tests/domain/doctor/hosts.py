"""A host on which all is well: two H100 joined by NVLink, one model on both. Rows change what they are about."""

from dataclasses import replace
from typing import Any

from vllm_supervisor.domain.doctor.facts import (
    Card,
    Cards,
    Clock,
    Facts,
    Folder,
    Holder,
    Host,
    Install,
    Launcher,
    Library,
    Limits,
    Model,
    ModelConfig,
    Port,
    Shm,
    Unknown,
    Wanted,
)

GIB = 1 << 30
GB = 10**9
SNAPSHOT = "/hub/models--o--m/snapshots/" + "a" * 40
NO_DRIVER = Unknown("nvidia-smi is not on the PATH, and no NVIDIA driver is loaded", absent=True)
HIDDEN = Unknown("it hides")


def card(index: int = 0, **changes: Any) -> Card:
    """One H100."""
    return replace(Card(index, f"GPU-{index}a", "NVIDIA H100", 80 * GIB, 79 * GIB, (9, 0)), **changes)


def cards(*found: Card, **changes: Any) -> Cards:
    """A driver and its cards, joined by NVLink."""
    return replace(Cards("580.65.06", (13, 0), found or (card(0), card(1)), {(0, 1): "NV18"}), **changes)


HOST = Host(
    user="vllm",
    port=Port(),
    shm=Shm(32 * GIB, 30 * GIB),
    folders=(
        Folder("log", "/var/log/v", "engine.vllm.log_file"),
        Folder("vLLM's cache", "/c", "VLLM_CACHE_ROOT", free=90 * GB),
    ),
    socket_folder="/tmp",
    limits=Limits("of the unit", 65535, None, None),
    clock=Clock(1.8e9, 1.7e9, synchronized=True),
)
GOOD = Facts(
    wanted=Wanted("o/m-7b", tensor=2, revision="a" * 40),
    launcher=Launcher("/venv/bin/vllm"),
    install=Install(
        "/venv/bin/python", "0.32.0", "2.9.0", "13.0", None, Library("libcudart.so.13", "/n/libcudart.so.13")
    ),
    cards=cards(),
    model=Model(
        local=False,
        path=SNAPSHOT,
        complete=True,
        bytes=14 * GB,
        config=ModelConfig(heads=32),
        cache="/hub",
        free=500 * GB,
    ),
    host=HOST,
)


def facts(**changes: Any) -> Facts:
    """The good host with changes; a mapping changes single fields of a part."""
    for name, value in changes.items():
        if isinstance(value, dict):
            changes[name] = replace(getattr(GOOD, name), **value)
    return replace(GOOD, **changes)


def holder(pid: int = 7, **changes: Any) -> Holder:
    """A process that holds 4 GiB."""
    return replace(Holder(pid, "python", 4 * GIB), **changes)
