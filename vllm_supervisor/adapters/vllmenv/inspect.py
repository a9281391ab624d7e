"""Looks into a built environment: imports vLLM in it, and reads what its extensions were linked against."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from vllm_supervisor.adapters.vllmenv.elf import needed
from vllm_supervisor.domain.torchcheck import Finding

_TIMEOUT = 600.0
"""Seconds. The first import compiles and reads some GB: minutes on a network file system."""
_MARK = "vllm-supervisor found: "
_RUNTIME = re.compile(r"libcudart\.so\.(\d+)")
_PROBE = f"""
import importlib, importlib.util, json
found = {{}}
try:
    import torch
    found.update(torch=str(torch.__version__), torch_cuda=torch.version.cuda or "")
    import vllm
    found.update(vllm=str(vllm.__version__))
    for name in ("vllm._C", "vllm._C_stable_libtorch"):
        if importlib.util.find_spec(name):
            importlib.import_module(name)
except BaseException as error:
    found.update(error=" ".join(f"{{type(error).__name__}}: {{error}}".split()))
print("\\n{_MARK}" + json.dumps(found), flush=True)
"""
"""torch comes first: it loads the CUDA libraries that vLLM's extension needs (`_C`; in 0.33.0 the other, measured).
`import vllm` alone loads neither: it is lazy, and vLLM itself only warns when its extension cannot be imported."""


def look_into(environment: Path, environ: Mapping[str, str]) -> Finding:
    """Return what is in there. Never raises for what it finds."""
    wants: set[int] = set()
    for extension in environment.glob("lib*/python3*/site-packages/vllm/*.so"):
        wants.update(int(found[1]) for name in needed(extension) if (found := _RUNTIME.match(name)))
    launcher = (environment / "bin/vllm").is_file()
    command = [str(environment / "bin/python"), "-I", "-c", _PROBE]
    try:
        done = subprocess.run(  # noqa: S603 - our own program in the environment that we built
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT,
            env=dict(environ),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(wants=frozenset(wants), error=str(error), launcher=launcher)
    told = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(_MARK)), None)
    if told is None:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        return Finding(wants=frozenset(wants), error=f"Python ended with status {done.returncode}: {last}")
    return Finding(wants=frozenset(wants), launcher=launcher, **json.loads(told.removeprefix(_MARK)))
