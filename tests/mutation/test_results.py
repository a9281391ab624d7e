"""The summary of a run of mutmut, from files as it keeps them."""

import json
from pathlib import Path

from tests.mutation.results import Mutant, Score, read, report

DOMAIN = "vllm_supervisor.domain"


def kept(folder: Path, module: str, **statuses: int | None) -> None:
    path = folder / f"{DOMAIN}.{module}".replace(".", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {f"{DOMAIN}.{module}.{name}": status for name, status in statuses.items()}
    path.with_suffix(".py.meta").write_text(json.dumps({"exit_code_by_key": named}))


def test_the_score_and_who_survived(tmp_path: Path) -> None:
    """Failures and timeouts are noticed; what survived, or no test runs, is not, and is named."""
    kept(tmp_path, "machine", x_step__mutmut_1=1, x_step__mutmut_2=0, x_step__mutmut_3=-24, x_step__mutmut_12=0)
    kept(tmp_path, "capacity.kv", x_room__mutmut_1=33, x_room__mutmut_2=None, x_other__mutmut_1=1)
    assert list(report(read(tmp_path))) == [
        "                 mutants  decided  noticed    score",
        "capacity               3        2        1   50.0 %",
        "machine                4        4        2   50.0 %",
        "all                    7        6        3   50.0 %",
        f"{DOMAIN}.capacity.kv.x_room__mutmut_N (no test runs it): 1",
        f"{DOMAIN}.machine.x_step__mutmut_N: 2 12",
    ]


def test_a_file_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """Progress is told while mutmut writes."""
    kept(tmp_path, "machine", x_step__mutmut_1=1)
    (tmp_path / "half.py.meta").write_text('{"exit_code_by')
    assert read(tmp_path) == [Mutant(f"{DOMAIN}.machine.x_step__mutmut_1", 1)]


def test_no_score_where_nothing_is_decided() -> None:
    """Nothing is no hundred percent."""
    score = Score.of([Mutant(f"{DOMAIN}.machine.x_step__mutmut_1", None)])
    assert score.percent is None
    assert score.show().split() == ["1", "0", "0", "-"]
