"""The summary of a run of mutmut, from files as it keeps them."""

import json
from pathlib import Path

from tests.mutation.results import FAILED, SURVIVED, TIMED_OUT, UNTESTED, Kept, Mutant, Score, report

DOMAIN = "vllm_supervisor.domain"


def kept(folder: Path, module: str, **statuses: int | None) -> None:
    path = folder / f"{DOMAIN}.{module}".replace(".", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {f"{DOMAIN}.{module}.{name}": status for name, status in statuses.items()}
    path.with_suffix(".py.meta").write_text(json.dumps({"exit_code_by_key": named}))


def test_the_score_and_who_survived(tmp_path: Path) -> None:
    """Failures and timeouts are noticed; what survived, or no test runs, is not, and is named."""
    kept(tmp_path, "machine", x_step__mutmut_1=FAILED, x_step__mutmut_2=SURVIVED, x_step__mutmut_3=TIMED_OUT)
    kept(tmp_path, "capacity.kv", x_room__mutmut_1=UNTESTED, x_room__mutmut_12=SURVIVED, x_other__mutmut_1=FAILED)
    assert list(report(Kept(tmp_path).mutants)) == [
        "                 mutants  decided  noticed    score",
        "capacity               3        3        1   33.3 %",
        "machine                3        3        2   66.7 %",
        "all                    6        6        3   50.0 %",
        f"{DOMAIN}.capacity.kv.x_room__mutmut_N (no test runs it): 1",
        f"{DOMAIN}.capacity.kv.x_room__mutmut_N: 12",
        f"{DOMAIN}.machine.x_step__mutmut_N: 2",
    ]


def test_what_is_decided_is_kept(tmp_path: Path) -> None:
    """In the file that it came from; the rest stays undecided."""
    kept(tmp_path, "machine", x_step__mutmut_1=None, x_step__mutmut_2=None)
    results = Kept(tmp_path)
    results.decide(results.mutants[1], FAILED)
    results.save()
    assert [mutant.status for mutant in Kept(tmp_path).mutants] == [None, FAILED]
    assert results.progress() == "1 of 2 decided, 1 of them noticed"


def test_a_part_is_a_sample() -> None:
    """How far off its score may be is told; nothing decided is no hundred percent."""
    mutants = [
        Mutant(f"{DOMAIN}.machine.x_step__mutmut_{n}", (FAILED, SURVIVED, None, None)[n % 4]) for n in range(400)
    ]
    assert Score.of(mutants).show().split(maxsplit=3) == ["400", "200", "100", "50.0 % ± 4.9"]
    assert Score.of(mutants[2:4]).percent is None
    assert Score.of(mutants[2:4]).show().split() == ["2", "0", "0", "-"]
