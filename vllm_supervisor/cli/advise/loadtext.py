"""A load's steps as a table, a plot of plain characters, CSV and JSON."""

import csv
import io

from vllm_supervisor.cli.advise.load import Run
from vllm_supervisor.domain.advice.ramp import Spread, Step, reading

_COLUMNS = (
    ("concurrency", 11), ("running", 7), ("waiting", 7), ("KV", 6), ("tokens/s", 8),
    ("TTFT p50", 8), ("p99", 8), ("ITL p50", 8), ("p99", 8),
)  # fmt: skip
_BAR = 50
CSV_COLUMNS = (
    "concurrency", "running", "waiting", "kv_cache_usage", "tokens_per_s", "ttft_p50_s", "ttft_p99_s", "itl_p50_s",
    "itl_p99_s", "requests", "failed", "preemptions", "reading",
)  # fmt: skip


def head(run: Run) -> str:
    """Return what the run asks for, and the table's head."""
    kind = "as observed" if run.observed else "each"
    return (
        f"prompts of {run.prompt_tokens} tokens, answers of {run.output_tokens} ({kind}); Ctrl-C ends it\n"
        + "  ".join(f"{name:>{width}}" for name, width in _COLUMNS)
        + "  reading"
    )


def row(run: Run, index: int) -> str:
    """Return one step's row."""
    step = run.steps[index]
    first, between = step.first_token, step.between_tokens
    cells = (
        f"{step.concurrency}", f"{step.running:.0f}", f"{step.waiting:.0f}",
        "-" if step.kv is None else f"{step.kv:.1%}", f"{step.throughput:.1f}",
        *(_milliseconds(first)), *(_milliseconds(between)),
    )  # fmt: skip
    aligned = (f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))
    return "  ".join(aligned) + f"  {reading(step, _before(run, index))}"


def foot(run: Run) -> str:
    """Return the plot, and what the steps say together."""
    found, counted = run.conclusion, [step for step in run.steps if not step.spoiled]
    lines = ["", *_plot(counted), ""] if counted else [""]
    if found is None:
        lines.append(f"no verdict  {run.why_none}")
    else:
        lines += [f"verdict     {found.verdict}: {found.reason}", f"in flight   keep {found.target}"]
    if found is not None and found.knee is not None:
        lines.append(f"throughput  {found.knee.why}")
    if run.stopped != run.why_none:
        lines.append(f"ended       {run.stopped}")
    return "\n".join(lines)


def as_json(run: Run) -> dict[str, object]:
    """Return the object of `advise --load --json`; the keys of `advise --json` among them."""
    found = run.conclusion
    last = run.steps[-1] if run.steps else None
    return {
        "verdict": found.verdict.value if found else None,
        "reason": found.reason if found else run.why_none,
        "current_concurrency": last.concurrency if last else None,
        "target_concurrency": found.target if found else None,
        "evidence": [
            f"{step.concurrency} at once: {reading(step, _before(run, i))}" for i, step in enumerate(run.steps)
        ],
        "knee": None if found is None or found.knee is None else {"at": found.knee.at, "flat": found.knee.flat},
        "ended": run.stopped,
        "prompt_tokens": run.prompt_tokens,
        "output_tokens": run.output_tokens,
        "steps": [dict(zip(CSV_COLUMNS, _values(run, index), strict=True)) for index in range(len(run.steps))],
    }


def as_csv(run: Run) -> str:
    """Return the steps as CSV, durations in seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_values(run, index) for index in range(len(run.steps)))
    return text.getvalue()


def _values(run: Run, index: int) -> list[object]:
    step = run.steps[index]
    return [
        step.concurrency,
        step.running,
        step.waiting,
        None if step.kv is None else round(step.kv, 4),
        round(step.throughput, 2),
        *_seconds(step.first_token),
        *_seconds(step.between_tokens),
        step.requests,
        step.failed,
        step.preemptions,
        reading(step, _before(run, index)),
    ]


def _plot(steps: list[Step]) -> list[str]:
    """Return a bar a step: tokens a second."""
    most = max(step.throughput for step in steps) or 1.0
    bars = (
        f"{step.concurrency:>11}  {'#' * max(1, round(_BAR * step.throughput / most)):<{_BAR}}  {step.throughput:.1f}"
        for step in steps
    )
    return [f"{'concurrency':>11}  tokens/s", *bars]


def _before(run: Run, index: int) -> Step | None:
    return run.steps[index - 1] if index else None


def _milliseconds(times: Spread | None) -> tuple[str, str]:
    return ("-", "-") if times is None else (f"{1000 * times.p50:.0f} ms", f"{1000 * times.p99:.0f} ms")


def _seconds(times: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if times is None else (round(times.p50, 6), round(times.p99, 6))
