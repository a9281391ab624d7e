"""An environment of vLLM's own: built beside the one in use, looked into, and only then switched to.

`DIR` is a symbolic link to `DIR.builds/STAMP`; the switch is one rename. What an interrupted build leaves has no
`record.json` and is removed by the next run.
"""

from vllm_supervisor.adapters.vllmenv.builder import Attempt, build
from vllm_supervisor.adapters.vllmenv.installer import Installer, find_installer
from vllm_supervisor.adapters.vllmenv.place import Place

__all__ = ["Attempt", "Installer", "Place", "build", "find_installer"]
