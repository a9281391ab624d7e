"""`nvidia-smi` as it was recorded, and as it fails."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.adapters.hosts import H100, script
from vllm_supervisor.adapters.host import NvidiaSmi
from vllm_supervisor.adapters.host.nvidia import topology
from vllm_supervisor.domain.doctor.facts import Cards, Holder, Unknown

MIB = 1 << 20
SYSTEM = "/usr/bin:/bin"

EIGHT = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31,64-95\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31,64-95\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tPHB\tSYS\t32-63,96-127\t1\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tSYS\t32-63,96-127\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""


def read(tmp_path: Path, body: str) -> Cards | Unknown:
    """What is read from an `nvidia-smi` with this body."""
    script(tmp_path / "bin/nvidia-smi", body)
    reader = NvidiaSmi({"PATH": f"{tmp_path}/bin:{SYSTEM}"}, tmp_path / "proc")
    return reader.read(lambda holder: replace(holder, ours=holder.pid == 4243))


def test_two_cards(tmp_path: Path) -> None:
    """Driver, CUDA, memory, capability, links, and holders as the process table describes them; no key is shown."""
    found = read(tmp_path, H100)
    assert isinstance(found, Cards)
    assert (found.driver, found.cuda, found.links) == ("570.133.20", (12, 8), {(0, 1): "NV18"})
    first, second = found.cards
    assert (first.name, first.total, first.free) == ("NVIDIA H100 80GB HBM3", 81559 * MIB, 81007 * MIB)
    assert (first.capability, first.holders) == ((9, 0), ())
    assert second.holders == (
        Holder(4242, "/opt/venv/bin/python3", 20480 * MIB),
        Holder(4243, "VLLM::EngineCore", None, ours=True),
    )


def test_a_driver_that_does_not_know_the_capability(tmp_path: Path) -> None:
    """Before 510 the question is refused as a whole: it is asked again without."""
    body = 'case "$*" in *compute_cap*) echo "Field compute_cap is not a valid field"; exit 2 ;; esac\n'
    body += 'case "$*" in *--query-gpu*) echo "0, GPU-aaaa, Tesla T4, 15109, 15000, 470.82.01" ;; esac\n'
    found = read(tmp_path, body)
    assert isinstance(found, Cards)
    assert (found.driver, found.cuda, found.cards[0].capability) == ("470.82.01", None, None)


def test_memory_that_is_shared_with_the_cpu(tmp_path: Path) -> None:
    """An integrated GPU gives no numbers."""
    row = "0, GPU-aaaa, NVIDIA GB10, [N/A], [N/A], 580.95.05, 12.1"
    found = read(tmp_path, f'case "$*" in *--query-gpu*) echo "{row}" ;; esac\n')
    assert isinstance(found, Cards)
    assert (found.cards[0].total, found.cards[0].capability) == (0, (12, 1))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n",
            "nvidia-smi failed with status 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("exec /nowhere/program\n", "nvidia-smi failed with status 127"),
    ],
)
def test_failing(tmp_path: Path, body: str, why: str) -> None:
    """Its own words are passed on, and that is no proof that there is no card."""
    found = read(tmp_path, body)
    assert isinstance(found, Unknown)
    assert found.why.startswith(why)
    assert not found.absent


def test_no_driver(tmp_path: Path) -> None:
    """No program and no module: there is no driver. With the module only the program is missing."""
    reader = NvidiaSmi({"PATH": str(tmp_path)}, tmp_path / "proc")
    found = reader.read(lambda holder: holder)
    assert found == Unknown("nvidia-smi is not on the PATH, and no NVIDIA driver is loaded", absent=True)
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20\n")
    found = reader.read(lambda holder: holder)
    assert found == Unknown("nvidia-smi is not on the PATH")


def test_topology() -> None:
    """Network cards and affinities are no GPUs."""
    found = topology(EIGHT)
    assert len(found) == 6
    assert found[0, 1] == "NV12"
    assert found[2, 3] == "PHB"
    assert found[0, 3] == "SYS"
    assert topology("no table at all") == {}
