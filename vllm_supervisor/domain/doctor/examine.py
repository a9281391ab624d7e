"""All checks, in the order in which an operator would go through them."""

from collections.abc import Callable, Iterator

from vllm_supervisor.domain.doctor import cards, host, install, model, precision
from vllm_supervisor.domain.doctor.facts import Facts
from vllm_supervisor.domain.doctor.finding import Finding

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    install.launcher,
    install.vllm,
    install.torch_cuda,
    install.libcudart,
    cards.gpus,
    cards.utilization,
    cards.memory,
    cards.holders,
    cards.instances,
    precision.capability,
    precision.fp8,
    cards.tensor_parallel,
    model.heads,
    cards.alike,
    cards.links,
    host.shm,
    host.port,
    host.exposure,
    model.present,
    model.token,
    model.revision,
    model.disk,
    host.folders,
    host.journal,
    host.limits,
    host.vllm_port,
    install.use_v1,
    host.tmpdir,
    host.clock,
)


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Return what every check found. Each finds at least one thing, if only that it could not look."""
    return tuple(finding for check in CHECKS for finding in check(facts))
