"""Stands in for uv: `venv` and `pip install`, from wheels in FAKE_UV_WHEELS/BACKEND instead of an index.

A folder that has a file `hang` installs half, says so, and never ends; one that has a file `fails` fails.
"""

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

SCRIPT = "#!{python}\nfrom vllm.command import main\nmain()\n"


def main() -> int:
    """Do what uv would, and write down how it was called."""
    words = sys.argv[1:]
    wheels = Path(os.environ["FAKE_UV_WHEELS"])
    with (wheels / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    if words[0] == "venv":
        return subprocess.call([sys.executable, "-m", "venv", "--without-pip", words[-1]])
    python = Path(words[words.index("--python") + 1])
    backend = words[words.index("--torch-backend") + 1] if "--torch-backend" in words else "none"
    site = next(python.parent.parent.glob("lib/python3*/site-packages"))
    if (wheels / backend / "fails").exists():
        print("  No solution found when resolving dependencies", file=sys.stderr)
        return 1
    for path in (wheels / backend).glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(site)
            if any(name.endswith("entry_points.txt") for name in archive.namelist()):
                script = python.parent / "vllm"
                script.write_text(SCRIPT.format(python=python))
                script.chmod(0o755)
        if (wheels / backend / "hang").exists():
            # What a build that compiles does: children of its own, and no answer to SIGINT.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            (wheels / "hanging").write_text(str(os.getpid()))
            while True:
                time.sleep(60)
    print(f"Installed vLLM for {backend}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
