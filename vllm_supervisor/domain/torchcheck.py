"""Whether an environment holds a vLLM that can run: what was found in it, and what that means."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What looking into an environment showed.

    `torch_cuda` is torch.version.cuda, empty for a build without CUDA; `wants` the majors N of the `libcudart.so.N`
    that vLLM's extensions were linked against; `error` what importing raised, empty where it worked.
    """

    vllm: str = ""
    torch: str = ""
    torch_cuda: str = ""
    wants: frozenset[int] = frozenset()
    error: str = ""
    launcher: bool = True


def fault(finding: Finding, backend: str) -> str | None:
    """Say what is wrong with the environment; None where nothing is. `backend` is empty where VLLM_PIP_ARGS decided.

    The comparison comes before the import's own error: it says what the missing library means.
    """
    if finding.torch:
        brought = f"torch {finding.torch} brings {f'CUDA {finding.torch_cuda}' if finding.torch_cuda else 'no CUDA'}"
        if finding.wants and cuda_major(finding.torch_cuda) not in finding.wants:
            wanted = " and ".join(f"libcudart.so.{major}" for major in sorted(finding.wants))
            return f"vLLM's extension wants {wanted}, and {brought}"
        if backend and not finding.torch_cuda:
            return f"{brought}, and {backend} was asked for"
    if finding.error and not (no_driver(finding) and not backend):
        return f"importing it fails: {finding.error}"
    if not finding.launcher:
        return "it has no command bin/vllm"
    return None


def no_driver(finding: Finding) -> bool:
    """Say whether only the driver's own library was missing: vLLM's extension needs it too (0.33.0, measured).

    Then an environment that is built for another host, by VLLM_PIP_ARGS, cannot be told good or bad by importing it.
    """
    return "libcuda.so.1: cannot open" in finding.error


def cuda_major(version: str) -> int | None:
    """Return 13 for "13.0"; None for what is no version."""
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() else None
