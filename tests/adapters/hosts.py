"""Small hosts made of files: environments with fake packages, a recorded nvidia-smi, models, process tables."""

import struct
import sys
from pathlib import Path

H100 = """\
case "$*" in
  *--query-gpu=*compute_cap*)
    echo "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 81007, 570.133.20, 9.0"
    echo "1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 60000, 570.133.20, 9.0" ;;
  *--query-compute-apps=*)
    echo "GPU-bbbb, 4242, /opt/venv/bin/python3 --api-key sk-secret, 20480"
    echo "GPU-bbbb, 4243, VLLM::EngineCore, [N/A]" ;;
  *topo*)
    printf '\\t\\033[4mGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\033[0m\\n'
    printf 'GPU0\\t X \\tNV18\\t0-31\\t0\\nGPU1\\tNV18\\t X \\t0-31\\t0\\n\\nLegend:\\n  X    = Self\\n' ;;
  *) printf '| NVIDIA-SMI 570.133.20    Driver Version: 570.133.20     CUDA Version: 12.8     |\\n' ;;
esac
"""
"""A shell script's answers, in the formats of driver 570."""


def script(path: Path, body: str, shebang: str = "#!/bin/sh") -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{shebang}\n{body}")
    path.chmod(0o755)
    return path


def environment(
    root: Path, vllm: str = "0.32.0", torch: str = "2.9.0", cuda: str | None = "12.8", needs: str | None = "12"
) -> Path:
    """Make a virtual environment with a real Python and fake packages; return its `bin/vllm`."""
    site = root / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (root / "bin").mkdir(parents=True)
    (root / "bin/python").symlink_to(sys.executable)
    (root / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\nversion = {sys.version.split()[0]}\n")
    for name, version in (("vllm", vllm), ("torch", torch)):
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
    (site / "torch/lib").mkdir(parents=True)
    shown = f"'{cuda}'" if cuda else "None"
    (site / "torch/version.py").write_text(f"cuda: Optional[str] = {shown}\nhip: Optional[str] = None\n")
    (site / "vllm").mkdir()
    needed = ["libc.so.6", *([f"libcudart.so.{needs}"] if needs else [])]
    (site / "vllm/_C.abi3.so").write_bytes(library(needed, ["$ORIGIN/../lib"]))
    return script(root / "bin/vllm", "import vllm\n", f"#!{root / 'bin/python'}")


def runtime(root: Path, folder: str, major: str) -> Path:
    """Put a libcudart into `nvidia/FOLDER/lib` of an environment."""
    site = next((root / "lib").glob("python*/site-packages"))
    path = site / f"nvidia/{folder}/lib/libcudart.so.{major}"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def library(needed: list[str], runpath: list[str]) -> bytes:
    """Return the least ELF file that names libraries and folders: a header, two segments, a dynamic section."""
    names, strings = [], bytearray(b"\0")
    for text in [*needed, ":".join(runpath)]:
        names.append(len(strings))
        strings += text.encode() + b"\0"
    at, base = 64 + 2 * 56, 0x10000
    entries = [(1, name) for name in names[:-1]] + [(29, names[-1]), (5, base + at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, at + len(strings), at + len(strings), 0x1000)
    place = at + len(strings)
    segment = struct.pack("<IIQQQQQQ", 2, 6, place, base + place, base + place, len(dynamic), len(dynamic), 8)
    return header + load + segment + bytes(strings) + dynamic
