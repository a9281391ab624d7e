"""Small wheels of a torch and a vLLM: what `install-vllm` looks at, and nothing else."""

import struct
import zipfile
from pathlib import Path

_SEGMENT = struct.Struct("<IIQQQQQQ")


def shared_object(*needed: str) -> bytes:
    """Return a shared object that was linked against these libraries, and has no code."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    offsets = [strings.index(name.encode() + b"\0") for name in needed]
    at = 64 + 2 * _SEGMENT.size
    address = 0x1000
    dynamic = b"".join(struct.pack("<qQ", 1, offset) for offset in offsets)
    length = len(dynamic) + 5 * 16
    strtab = address + at + length
    dynamic += struct.pack("<qQqQqQqQqQ", 5, strtab, 10, len(strings), 6, strtab, 11, 24, 0, 0)
    size = at + length + len(strings)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, _SEGMENT.size, 2, 64, 0, 0)
    load = _SEGMENT.pack(1, 6, 0, address, address, size, size, 0x1000)
    return header + load + _SEGMENT.pack(2, 6, at, address + at, address + at, length, length, 8) + dynamic + strings


def wheel(folder: Path, name: str, version: str, files: dict[str, str | bytes], requires: str = "") -> Path:
    """Write a wheel; a file `entry_points.txt` goes into its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content: dict[str, str | bytes] = {f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    for member, text in files.items():
        content[f"{info}/{member}" if member == "entry_points.txt" else member] = text
    content[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in [*content, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in content.items():
            archive.writestr(member, text)
    return path


def torch(folder: Path, cuda: str | None, version: str = "2.13.0") -> None:
    """Write a torch that says it was built for this CUDA."""
    local = "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"
    files: dict[str, str | bytes] = {
        "torch/__init__.py": f"from torch import version\n__version__ = {version + '+' + local!r}\n",
        "torch/version.py": f"cuda = {cuda!r}\n",
    }
    wheel(folder, "torch", f"{version}+{local}", files)


def vllm(folder: Path, version: str, wants: int, *, loads: bool = True, script: bool = True, body: str = "") -> None:
    """Write a vLLM whose extension wants `libcudart.so.WANTS`; where it does not load, importing it says so."""
    extension = shared_object(f"libcudart.so.{wants}", "libc.so.6")
    files: dict[str, str | bytes] = {
        "vllm/__init__.py": f"__version__ = {version!r}\n{body}\n",
        "vllm/command.py": "def main():\n    print('vLLM')\n",
        **(
            {"vllm/_C.py": "", "vllm/_moe_C.abi3.so": extension}
            if loads
            else {"vllm/_C_stable_libtorch.abi3.so": extension}
        ),
        **({"entry_points.txt": "[console_scripts]\nvllm = vllm.command:main\n"} if script else {}),
    }
    wheel(folder, "vllm", version, files, requires="torch")
