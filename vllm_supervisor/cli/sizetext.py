"""What `size` prints for people."""

from vllm_supervisor.adapters.host.checkpoint import Checkpoint
from vllm_supervisor.cli.sizejson import Answer
from vllm_supervisor.domain.capacity.cards import GpuModel
from vllm_supervisor.domain.capacity.remedies import Remedy
from vllm_supervisor.domain.capacity.sizing import SAFE, Sizing
from vllm_supervisor.domain.units import GIB, dotted
from vllm_supervisor.errors import one_line

_WIDTH = 20
_BILLION, _MILLION = 10**9, 10**6


def text(answer: Answer) -> str:
    """Return the figures for people."""
    sizing = answer.sizing
    lines = [_title(answer.model, sizing), _where(sizing), ""]
    lines += [f"{name:<{_WIDTH}}{value:>12}   {note}".rstrip() for name, value, note in _rows(answer.found, sizing)]
    lines += ["", _verdict(sizing)]
    lines += _side_by_side(answer)
    if answer.helps:
        lines += ["", *_table(answer.helps)]
    advice = [*_doubt(sizing), *_advice(sizing), *([answer.remark] if answer.remark else [])]
    return "\n".join([*lines, *(["", *advice] if advice else [])])


def _side_by_side(answer: Answer) -> list[str]:
    """Return the estimate beside what the last start measured, which is what counts above."""
    known, room = answer.sizing.measured, answer.estimate.room
    if known is None or answer.past is None:
        return []
    estimate = answer.estimate
    rows = [("weights", gib(estimate.weights.rank), known.weights and gib(known.weights))]
    rows += [("KV cache", gib(max(0, estimate.budget)), known.kv_cache and gib(known.kv_cache))] if room else []
    rows += [("tokens", f"{room.tokens:,}", known.tokens and f"{known.tokens:,}")] if room else []
    if room and known.request_tokens:
        measured = f"{known.concurrency:.2f}" if known.concurrency is not None else None
        same = known.request_tokens == answer.sizing.max_len
        rows.append((f"of {known.request_tokens:,} at once", f"{room.concurrency:.2f}" if same else "", measured))
    rows += [("CUDA graphs", "", gib(known.graphs))] if known.graphs else []
    title = f"the last start with these arguments (vLLM {answer.past.vllm_version or '?'}), whose figures count above"
    lines = ["", title, f"{'':<{_WIDTH}}{'estimated':>12}{'measured':>14}"]
    return lines + [f"{name:<{_WIDTH}}{guess:>12}{measured or '-':>14}" for name, guess, measured in rows]


def _title(model: str, sizing: Sizing) -> str:
    architecture = sizing.model.architecture
    count = f"{_many(architecture.total)} parameters"
    if architecture.experts:
        count += f", {_many(architecture.active)} of them active for a token"
    return one_line(f"{model}: {architecture.name}, {count}, {_format(sizing)}")


def _format(sizing: Sizing) -> str:
    """Return what the weights are in once loaded."""
    plain = "32 bit" if sizing.ask.dtype in ("float", "float32") else "16 bit"
    return plain if sizing.loaded.method is None else sizing.loaded.label


def _many(count: int) -> str:
    return f"{count / _BILLION:.1f} billion" if count >= _BILLION else f"{count / _MILLION:.1f} million"


def gib(count: float) -> str:
    """Return bytes in GiB, or in MiB where that says more."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count * 1024 / GIB:.1f} MiB"


def _where(sizing: Sizing) -> str:
    layout, gpus = sizing.ask.layout, sizing.gpus
    if not gpus.memory:
        return f"vLLM {dotted(sizing.rules.version)}; no GPU is known, and whether the weights fit is not looked at"
    spread = [f"tensor-parallel {layout.tensor}"] if layout.tensor > 1 else []
    spread += [f"pipeline-parallel {layout.pipeline}"] if layout.pipeline > 1 else []
    spread += [f"data-parallel {layout.data}"] if layout.data > 1 else []
    on = f"{layout.ranks} of {gpus.count} GPUs" if gpus.count > layout.ranks else f"{layout.ranks} GPU"
    on += "s" if layout.ranks == gpus.count > 1 else ""
    name = f" ({gpus.name}, {gib(gpus.memory)})" if gpus.name else f" of {gib(gpus.memory)}"
    return ", ".join(
        [f"on {on}{name}", *spread, f"as vLLM {dotted(sizing.rules.version)} counts; figures are of one GPU"]
    )


def _rows(found: Checkpoint, sizing: Sizing) -> list[tuple[str, str, str]]:
    beside, budget = sizing.overhead, sizing.budget_range
    sources = {"checkpoint": f"from {found.source}", "measured": "measured"}
    source = sources.get(sizing.weights.source, "computed from the configuration")
    rows = [("weights", gib(sizing.weights.rank), source)]
    if sizing.weights.draft:
        rows[0] = (*rows[0][:2], f"{source}; {gib(sizing.weights.draft)} more (draft layers) are not loaded")
    counted = sizing.measured is not None and sizing.measured.kv_cache is not None
    given = sizing.ask.kv_cache_memory is not None
    if not counted and (sizing.gpus.memory or not given):
        what = "activations, CUDA graphs, NCCL: an estimate"
        rows.append(("beside them", gib(beside.likely), f"{beside.least / GIB:.1f} to {beside.most / GIB:.1f}; {what}"))
    if not counted and not given:
        rows.append(("vLLM takes", gib(sizing.requested), f"{sizing.utilization:g} of {gib(sizing.gpus.memory)}"))
    if sizing.pool is None or sizing.room is None:
        return [*rows, ("KV cache", "none", "an encoder keeps nothing of a request")]
    if sizing.budget <= 0:
        return [*rows, ("KV cache", "none", f"{gib(-sizing.budget)} are missing already"), _token_row(sizing)]
    note = "as given" if given else "measured" if counted else f"{budget[0] / GIB:.1f} to {budget[1] / GIB:.1f}"
    rows.append(("KV cache", gib(sizing.budget), note))
    rows.append(_token_row(sizing))
    context, output = sizing.request
    rows.append(("tokens", f"{sizing.room.tokens:,}", "KV cache size, as vLLM prints it"))
    rows.append(
        ("requests at once", f"{sizing.room.concurrency:.2f}", f"of {sizing.max_len:,} tokens each (--max-model-len)")
    )
    share = f"at {SAFE:.0%} of the cache, up to --max-num-seqs {sizing.sequences}"
    rows.append(("", f"{sizing.at_once}", f"of {context:,} in and {output:,} out, {share}"))
    return rows


def _token_row(sizing: Sizing) -> tuple[str, str, str]:
    """Return the line about a token; for a model with states, about a request instead."""
    found = sizing.per_token
    if found is None:
        request = gib(sizing.request_bytes or 0)
        return ("a request", request, f"of {sizing.max_len:,} tokens; layers with a state have no figure per token")
    plain = "32-bit" if sizing.ask.dtype in ("float", "float32") else "16-bit"
    note = f"{sizing.kv_dtype} cache" if sizing.kv_dtype != "auto" else f"{plain} cache"
    if found.at_first != found.ever:
        note += f"; {found.at_first / 1024:,.1f} KiB while all windows see it"
    return ("a token", f"{found.ever / 1024:,.1f} KiB", note)


def _verdict(sizing: Sizing) -> str:
    if not sizing.fits:
        if sizing.beyond:
            return f"does not fit: weights, cache and what is beside them take {gib(sizing.beyond)} more than a GPU has"
        if sizing.budget < 0:
            return f"does not fit: {gib(-sizing.budget)} are missing on each GPU"
        missing = (sizing.request_bytes or 0) - sizing.budget
        return f"does not fit: one request of {sizing.max_len:,} tokens takes {gib(max(missing, 0))} more than there is"
    return "fits" + ("; tight: it depends on what is really taken beside the weights" if sizing.tight else "")


def _table(helps: tuple[Remedy, ...]) -> list[str]:
    width = max(len(one.change) for one in helps)
    lines = [f"{'what would help':<{width}}   weights  KV cache        tokens  requests"]
    for one in helps:
        after = one.sizing
        tokens = f"{after.room.tokens:,}" if after.room else "-"
        requests = f"{after.room.concurrency:.2f}" if after.room else "-"
        memory = f"{after.weights.rank / GIB:>6.1f} G  {max(0, after.budget) / GIB:>6.1f} G"
        notes = "; ".join(note for note in ("" if after.fits else "not enough alone", one.note) if note)
        lines.append(f"{one.change:<{width}}  {memory}  {tokens:>12}  {requests:>8}   {notes}".rstrip())
    return lines


def _doubt(sizing: Sizing) -> list[str]:
    if sizing.doubtful is None:
        return []
    found, counted = map(gib, sizing.doubtful)
    return [f"Warning: the checkpoint holds {found}, the configuration counts {counted}: they are not of one model."]


def _advice(sizing: Sizing) -> list[str]:
    layout, gpus, architecture = sizing.ask.layout, sizing.gpus, sizing.model.architecture
    card: GpuModel | None = gpus.model
    lines = []
    if sizing.fits and layout.ranks == 1 and gpus.count > 1:
        lines.append(
            f"It fits one GPU: {gpus.count} copies on {gpus.count} GPUs serve more than one copy on all of them."
        )
    if layout.tensor > 1 and card is not None and not card.nvlink:
        lines.append(f"{gpus.name} has no NVLink: tensor parallelism waits for PCIe in every layer.")
    quick = card is None or card.fp8
    if "fp8" in f"{sizing.loaded.method} {sizing.kv_dtype}".lower() and not quick:
        lines.append(f"{gpus.name} does not compute in FP8 (Ada, Hopper and later do): it saves memory, not time.")
    if architecture.uncounted and sizing.model.found is None:
        lines.append(
            f"Not counted: {', '.join(architecture.uncounted)}; the configuration does not tell their weights."
        )
    elif architecture.beside:
        lines.append(f"The {' and '.join(architecture.beside)} part is counted with the weights; its activations vary.")
    return lines
