"""Checks of the environment that the launcher runs: vLLM, torch, CUDA's runtime library."""

from collections.abc import Iterator

from vllm_supervisor.domain.doctor.facts import Cards, Facts, Install, Unknown
from vllm_supervisor.domain.doctor.finding import Finding, fail, ok, skip, warn
from vllm_supervisor.domain.units import dotted, version

_DRIVERS = (
    (590, (13, 1)),
    (580, (13, 0)),
    (575, (12, 9)),
    (570, (12, 8)),
    (560, (12, 6)),
    (555, (12, 5)),
    (550, (12, 4)),
    (545, (12, 3)),
    (535, (12, 2)),
    (530, (12, 1)),
    (525, (12, 0)),
)
"""First driver of each branch and the newest CUDA that it offers (NVIDIA's CUDA release notes)."""

_V0_GONE = (0, 11)
"""The first release without the V0 engine: it refuses VLLM_USE_V1=0."""
_INSTALL = "run `vllm-supervisor install-vllm`"


def offered_cuda(cards: Cards) -> tuple[int, int] | None:
    """Return the newest CUDA that the driver offers, by its own word or by its version; None where neither tells."""
    if cards.cuda is not None:
        return cards.cuda
    major = (version(cards.driver) or (0,))[0]
    return next((cuda for first, cuda in _DRIVERS if major >= first), None)


def launcher(facts: Facts) -> Iterator[Finding]:
    """Say whether the program is there."""
    found = facts.launcher
    if found.path is None:
        yield fail("launcher", found.why_not, found.remedy)
    elif not found.program:
        why = f"{found.path} begins neither with #! nor as an ELF program: Linux will not execute it"
        yield warn("launcher", why, f"correct engine.vllm.launcher, or {_INSTALL}")
    else:
        yield ok("launcher", found.path)


def vllm(facts: Facts) -> Iterator[Finding]:
    """Say which vLLM would run, if any."""
    install = facts.install
    if isinstance(install, Unknown) and install.absent:
        yield fail("vllm", install.why, f"correct engine.vllm.launcher, or {_INSTALL}")
    elif isinstance(install, Unknown):
        yield skip("vllm", install.why)
    elif install.vllm is None:
        yield fail("vllm", f"vLLM is not installed for {install.python}", f"{_INSTALL}, or correct the launcher")
    else:
        yield ok("vllm", f"{install.vllm} ({install.python})")


def torch_cuda(facts: Facts) -> Iterator[Finding]:
    """Say whether the driver runs the CUDA that torch was built for."""
    name, install, cards = "torch-cuda", facts.install, facts.cards
    if isinstance(install, Unknown):
        yield skip(name, install.why)
    elif install.torch is None:
        yield fail(name, f"torch is not installed for {install.python}", f"{_INSTALL}, or install torch there")
    elif install.torch_hip is not None:
        yield skip(name, f"torch {install.torch} is built for ROCm, whose driver is not looked at")
    elif install.torch_cuda is None:
        if isinstance(cards, Cards) and cards.cards:
            why = f"torch {install.torch} is a build without CUDA, and there is a {cards.cards[0].name}"
            yield warn(name, why, f"{_INSTALL} for a build that uses the GPU")
        else:
            yield ok(name, f"torch {install.torch} is a build without CUDA")
    elif isinstance(cards, Unknown):
        yield skip(name, f"torch {install.torch} wants CUDA {install.torch_cuda}; {cards.why}")
    else:
        yield _against_driver(install, cards)


def _against_driver(install: Install, cards: Cards) -> Finding:
    name, wants = "torch-cuda", version(install.torch_cuda)[:2]
    offers = offered_cuda(cards)
    built = f"torch {install.torch} is built for CUDA {dotted(wants)}"
    if offers is None or not wants:
        return skip(name, f"{built}; what driver {cards.driver} offers is not known")
    if wants[0] > offers[0]:
        needs = next((f"{first} or later" for first, cuda in reversed(_DRIVERS) if cuda >= wants), "a newer one")
        why = f"{built}, driver {cards.driver} offers {dotted(offers)}"
        return fail(name, why, f"update the driver to {needs} and reboot, or install a build for CUDA {offers[0]}")
    if wants > offers and wants[0] == offers[0]:
        why = f"{built}, driver {cards.driver} offers {dotted(offers)}: kernels compiled on the host may not load"
        return warn(name, why, f"update the driver to one that offers CUDA {dotted(wants)}")
    return ok(name, f"{built}, driver {cards.driver} offers {dotted(offers)}")


def libcudart(facts: Facts) -> Iterator[Finding]:
    """Say whether vLLM's extension will find CUDA's runtime library, and whether it is torch's."""
    name, install = "libcudart", facts.install
    if isinstance(install, Unknown):
        yield skip(name, install.why)
        return
    library = install.runtime
    if library is None:
        if install.needs_nvidia:
            yield skip(name, "no extension of vLLM that names libcudart was found")
        else:
            yield ok(name, "not needed by this build")
        return
    wants, has = version(library.name.rpartition(".so.")[2])[:1], version(install.torch_cuda)[:1]
    fresh = f"{_INSTALL} for vLLM and torch of one CUDA"
    if library.found is None and library.misplaced is not None:
        folder = library.misplaced.rpartition("/")[0]
        why = f"vLLM's extension needs {library.name}, which is in {folder}, where the loader does not look"
        yield fail(name, why, f"set engine.vllm.env.LD_LIBRARY_PATH: {folder}")
    elif library.found is None:
        why = f"vLLM's extension needs {library.name}, which is nowhere it looks (torch is built for CUDA "
        yield fail(name, f"{why}{install.torch_cuda or 'none'})", fresh)
    elif wants and has and wants != has:
        why = f"vLLM's extension needs {library.name}, torch is built for CUDA {install.torch_cuda}"
        yield fail(name, why, fresh)
    else:
        yield ok(name, f"{library.name} is {library.found}")


def use_v1(facts: Facts) -> Iterator[Finding]:
    """Say whether the switch of an older generation of vLLM is still set."""
    name, value = "vllm-use-v1", facts.wanted.use_v1
    installed = version(facts.install.vllm) if isinstance(facts.install, Install) else ()
    remedy = "remove VLLM_USE_V1 from engine.vllm.env and from the daemon's environment"
    if value is None:
        yield ok(name, "VLLM_USE_V1 is not set")
    elif value == "0" and installed >= _V0_GONE:
        yield fail(name, f"VLLM_USE_V1=0 asks for an engine that vLLM {dotted(installed)} no longer has", remedy)
    else:
        yield warn(name, f"VLLM_USE_V1={value} is a switch of older versions", remedy)
