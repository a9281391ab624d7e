"""What is installed beside an interpreter: vLLM, torch, CUDA's runtime library. Nothing of it is imported."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vllm_supervisor.adapters.host import elf, files
from vllm_supervisor.adapters.host.ask import ask
from vllm_supervisor.domain.doctor.facts import Install, Library, Unknown

_PATHS = "import json, sys; print(json.dumps([path for path in sys.path if path]))"
_CONSTANT = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
"""torch/version.py: `cuda: Optional[str] = '12.9'`; without annotation before torch 2.6."""
_RUNTIME = "libcudart.so."
_SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
_LOADER_CACHE = Path("/etc/ld.so.cache")


def installed(python: str, env: Mapping[str, str], user: int | None = None) -> Install | Unknown:
    """Return what `python` finds in the environment `env`. It is run, as `user`, for the list of its folders."""
    answer = ask([python, "-c", _PATHS], env, user=user)
    if answer.text is None:
        return Unknown(f"the launcher's interpreter {python} does not work: {answer.why}", absent=True)
    try:
        folders = [Path(str(path)) for path in json.loads(answer.text.strip().splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        return Unknown(f"the launcher's interpreter {python} gave no list of folders")
    versions = {name: found for folder in reversed(folders) for name, found in _distributions(folder)}
    constants = _torch(folders)
    return Install(
        python=python,
        vllm=versions.get("vllm"),
        torch=versions.get("torch"),
        torch_cuda=constants.get("cuda"),
        torch_hip=constants.get("hip"),
        runtime=_runtime(folders, env, constants.get("cuda")),
    )


def _distributions(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield vLLM's and torch's versions from the names of their `.dist-info` folders."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is needed
    except OSError:
        return
    for name in names:
        package, dash, rest = name.removesuffix(".dist-info").partition("-")
        if dash and name.endswith(".dist-info") and package in {"vllm", "torch"}:
            yield package, rest


def _torch(folders: Sequence[Path]) -> dict[str, str]:
    for folder in folders:
        try:
            text = (folder / "torch/version.py").read_text(errors="replace")
        except OSError:
            continue
        return dict(_CONSTANT.findall(text))
    return {}


def _runtime(folders: Sequence[Path], env: Mapping[str, str], cuda: str | None) -> Library | None:
    """Return the libcudart that vLLM's extensions need; None where none of them names one."""
    for site in folders:
        for extension in sorted((site / "vllm").glob("_*.so")):
            dynamic = elf.read(extension)
            name = next((need for need in dynamic.needed if need.startswith(_RUNTIME)), None) if dynamic else None
            if name and dynamic:
                origins = [folder.replace("${ORIGIN}", "$ORIGIN") for folder in dynamic.runpath]
                own = [Path(folder.replace("$ORIGIN", str(extension.parent))) for folder in origins]
                return _library(name, own, folders, env, cuda)
    return None


def _library(
    name: str, own: Sequence[Path], folders: Sequence[Path], env: Mapping[str, str], cuda: str | None
) -> Library:
    """Look as the loader will: loaded by torch before, LD_LIBRARY_PATH, the file's own paths, the system's.

    vLLM imports torch first, which loads the libcudart of its own CUDA from `nvidia/*/lib`; a library that is loaded
    satisfies whoever needs one of that name.
    """
    wheels = [path for site in folders for path in sorted(site.glob("nvidia/*/lib"))]
    listed = [Path(folder) for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    major = name.removeprefix(_RUNTIME).partition(".")[0]
    preloaded = wheels + [site / "torch/lib" for site in folders] if cuda and cuda.split(".")[0] == major else []
    places = [*preloaded, *listed, *own, *map(Path, _SYSTEM)]
    found = next((str(place / name) for place in places if files.exists(place / name)), None) or _cached(name)
    elsewhere = next((str(place / name) for place in wheels if files.exists(place / name)), None)
    return Library(name, _tidy(found), None if found else elsewhere)


def _tidy(path: str | None) -> str | None:
    return os.path.normpath(path) if path else None


def _cached(name: str) -> str | None:
    """Return where the loader's own cache has the library (`ldconfig -p`)."""
    try:
        data = _LOADER_CACHE.read_bytes()
    except OSError:
        return None
    found = re.search(rb"\0(/[^\0]*/" + re.escape(name.encode()) + rb")\0", data)
    path = found[1].decode(errors="replace") if found else None
    return path if path and files.exists(Path(path)) else None
