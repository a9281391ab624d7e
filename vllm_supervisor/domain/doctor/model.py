"""Checks of the model: is it here, can it be fetched, is there room for it, does it divide among the GPUs."""

import re
from collections.abc import Iterator

from vllm_supervisor.domain.doctor.facts import Facts, ModelConfig, Unknown
from vllm_supervisor.domain.doctor.finding import Finding, fail, ok, skip, warn
from vllm_supervisor.domain.doctor.weights import estimate
from vllm_supervisor.domain.units import GB, gb

_GATED = re.compile(
    r"meta-llama/|google/(?:code|pali|med)?gemma-(?:[123]-|[23]n|[27]b)|CohereLabs/|CohereForAI/|bigcode/starcoder"
    r"|black-forest-labs/FLUX\.1-dev|mistralai/Ministral-8B"
)
"""Names on the Hub that are served only to accounts which accepted a licence. The Hub adds to them all the time."""
_LARGE = 20 * GB
"""Files of this much, asked for without a token, meet the Hub's limits on anonymous clients (429)."""
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SPARE = 5 * GB
"""Compiled kernels, CUDA graphs' plans and temporary files."""
_TOKEN = "set engine.vllm.env.HF_TOKEN: ${credential:hf-token}, or run `hf auth login` as the service's user"  # noqa: S105 - how to give one


def revision(facts: Facts) -> Iterator[Finding]:
    """Say whether the next restart would load the same weights."""
    name, model, wanted = "revision", facts.model, facts.wanted.revision
    if isinstance(model, Unknown):
        yield skip(name, model.why)
    elif model.local:
        yield ok(name, "not needed: the model is a folder")
    elif wanted is None:
        why = "no --revision: a push to the model's repository changes what the next restart loads"
        yield warn(name, why, _pin(model.path))
    elif not _COMMIT.fullmatch(wanted):
        yield warn(name, f"--revision {wanted} is a branch or a tag, which may move", _pin(model.path))
    else:
        yield ok(name, wanted)


def _pin(snapshot: str | None) -> str:
    here = (snapshot or "").rpartition("/snapshots/")[2]
    commit = here if _COMMIT.fullmatch(here) else "COMMIT"
    return f"set --revision {commit} in engine.vllm.extra_args" + (
        " (the commit is on the model's page, under Files)" if commit == "COMMIT" else ""
    )


def present(facts: Facts) -> Iterator[Finding]:
    """Say whether the model is here, or may be fetched."""
    name, model, wanted = "model", facts.model, facts.wanted
    if isinstance(model, Unknown):
        yield skip(name, model.why)
    elif model.complete:
        yield ok(name, f"{model.path}, {gb(model.bytes)}")
    elif model.local:
        what = (
            "has no complete weights or no config.json"
            if model.path
            else f"does not exist, or {facts.host.user} may not read it"
        )
        yield fail(
            name, f"the folder {model.path or wanted.model} {what}", "copy the model there, or set engine.vllm.model"
        )
    elif wanted.offline:
        why = f"offline mode (HF_HUB_OFFLINE), and {wanted.model} is not complete in {model.cache}"
        yield fail(name, why, f"run `hf download {wanted.model}` as the service's user, or unset HF_HUB_OFFLINE")
    else:
        part = f", {gb(model.bytes)} of it are there" if model.bytes else ""
        yield ok(name, f"{wanted.model} will be downloaded to {model.cache}{part}")


def token(facts: Facts) -> Iterator[Finding]:
    """Say whether there is a token where the Hub wants one."""
    name, model, asked = "token", facts.model, facts.wanted.model
    if isinstance(model, Unknown):
        yield skip(name, model.why)
    elif model.local or model.complete:
        yield ok(name, "not needed: the model is here")
    elif facts.wanted.offline:
        yield ok(name, "not needed: offline mode downloads nothing")
    elif model.token:
        yield ok(name, "there is a token for the Hub (whether it is accepted was not tried)")
    elif _GATED.match(asked):
        yield fail(name, f"{asked} is gated and there is no token for the Hub: the download ends with 401", _TOKEN)
    elif (size := estimate(asked)) is not None and size >= _LARGE:
        why = f"{asked} (about {size / GB:.0f} GB) and no token for the Hub: anonymous downloads are slowed and refused"
        yield warn(name, why, _TOKEN)
    else:
        yield ok(name, "none, and none seems to be needed")


def disk(facts: Facts) -> Iterator[Finding]:
    """Say whether there is room for what is still to be downloaded, and for what is compiled."""
    name, model = "disk", facts.model
    quiet = True
    for folder in facts.host.folders:
        if folder.free is not None and folder.free < _SPARE:
            quiet = False
            why = f"{gb(folder.free)} free for the {folder.use} in {folder.path}"
            yield warn(name, why, f"free {_SPARE / GB:.0f} GB there, or set {folder.setting}")
    if isinstance(model, Unknown):
        yield skip(name, model.why)
        return
    if isinstance(model.free, Unknown):
        yield skip(name, model.free.why)
        return
    room = f"{gb(model.free)} free in {model.cache}"
    size = estimate(facts.wanted.model)
    if model.local or model.complete or facts.wanted.offline:
        if quiet:
            yield ok(name, "nothing is to be downloaded")
    elif size is None:
        yield skip(name, f"{room}; how large the model is, its name does not tell")
    elif model.free < (missing := max(0, size - model.bytes)):
        why = f"{room}, about {missing / GB:.0f} GB are to be downloaded"
        yield fail(name, why, "free as much, or set HF_HOME in engine.vllm.env to a larger file system")
    elif model.free < missing + _SPARE:
        yield warn(
            name, f"{room}, about {missing / GB:.0f} GB are to be downloaded", "free some, or set HF_HOME in env"
        )
    elif quiet:
        yield ok(name, f"{room}, about {missing / GB:.0f} GB are to be downloaded")


def heads(facts: Facts) -> Iterator[Finding]:
    """Say whether the attention heads divide among the ranks of the tensor-parallel group."""
    name, model, size = "attention-heads", facts.model, facts.wanted.tensor
    if size == 1:
        yield ok(name, "not needed: tensor-parallel size 1")
    elif isinstance(model, Unknown):
        yield skip(name, model.why)
    elif not isinstance(model.config, ModelConfig) or model.config.heads is None:
        why = model.config.why if isinstance(model.config, Unknown) else "config.json does not say how many"
        yield skip(name, why)
    elif model.config.heads % size:
        count = model.config.heads
        fits = [str(n) for n in range(1, 17) if count % n == 0]
        why = f"{count} attention heads do not divide by --tensor-parallel-size {size}"
        yield fail(name, why, f"set --tensor-parallel-size to one of {', '.join(fits)}")
    else:
        yield ok(name, f"{model.config.heads} heads on {size} GPUs")
