"""NVIDIA's cards, as `nvidia-smi` tells of them, which comes with the driver."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vllm_supervisor.adapters.host.ask import Answer, ask
from vllm_supervisor.domain.doctor.facts import Card, Cards, Holder, Unknown

_MIB = 1 << 20
_CARD = "index,uuid,name,memory.total,memory.free,driver_version,compute_cap"
_CARD_OLD = _CARD.removesuffix(",compute_cap")
"""compute_cap came with driver 510; earlier ones refuse the whole question."""
_HOLDER = "gpu_uuid,pid,process_name,used_memory"
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)")
_SHOWN = 80
_COLUMNS = {name: at for at, name in enumerate(_CARD.split(","))}


class CardReader(Protocol):
    """Reads the driver and its cards."""

    def read(self, describe: Callable[[Holder], Holder]) -> Cards | Unknown:
        """Return what there is. `describe` adds to a holder of memory what the process table knows. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """Reads with the `nvidia-smi` on the PATH of `env`, as `user`; `proc` is `/proc`, or a copy of it."""

    env: Mapping[str, str]
    proc: Path = Path("/proc")
    user: int | None = None

    def read(self, describe: Callable[[Holder], Holder]) -> Cards | Unknown:
        """Return what there is; four questions, 10 s each at most, and none after one that was not answered."""
        program = shutil.which("nvidia-smi", path=self.env.get("PATH"))
        if program is None:
            loaded = (self.proc / "driver/nvidia/version").exists()
            why = "nvidia-smi is not on the PATH" + ("" if loaded else ", and no NVIDIA driver is loaded")
            return Unknown(why, absent=not loaded)
        answer = self._ask([program, f"--query-gpu={_CARD}", "--format=csv,noheader,nounits"])
        if answer.text is None and "status" in answer.why:
            older = self._ask([program, f"--query-gpu={_CARD_OLD}", "--format=csv,noheader,nounits"])
            answer = older if older.text is not None else answer
        if answer.text is None:
            return Unknown(answer.why)
        rows = list(_rows(answer.text))
        held = self._ask([program, f"--query-compute-apps={_HOLDER}", "--format=csv,noheader,nounits"]).text or ""
        cards = tuple(_cards(rows, [(uuid, describe(holder)) for uuid, holder in _holders(held)]))
        banner = _CUDA.search(self._ask([program]).text or "")
        return Cards(
            driver=rows[0][_COLUMNS["driver_version"]] if rows else "unknown",
            cuda=(int(banner[1]), int(banner[2])) if banner else None,
            cards=cards,
            links=self._links(program) if len(cards) > 1 else {},
        )

    def _ask(self, command: Sequence[str]) -> Answer:
        return ask(command, self.env, user=self.user)

    def _links(self, program: str) -> Mapping[tuple[int, int], str] | Unknown:
        answer = self._ask([program, "topo", "-m"])
        return topology(answer.text) if answer.text is not None else Unknown(answer.why)


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= len(_COLUMNS) - 1 and cells[0].isdigit():
            yield cells


def _cards(rows: list[list[str]], held: list[tuple[str, Holder]]) -> Iterator[Card]:
    for row in rows:
        uuid = row[_COLUMNS["uuid"]]
        capability = re.fullmatch(r"(\d+)\.(\d+)", row[-1]) if len(row) == len(_COLUMNS) else None
        yield Card(
            index=int(row[0]),
            uuid=uuid,
            name=row[_COLUMNS["name"]],
            total=_bytes(row[_COLUMNS["memory.total"]]) or 0,
            free=_bytes(row[_COLUMNS["memory.free"]]) or 0,
            capability=(int(capability[1]), int(capability[2])) if capability else None,
            holders=tuple(holder for owner, holder in held if owner == uuid),
        )


def _holders(text: str) -> Iterator[tuple[str, Holder]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 4 or not cells[1].isdigit():  # noqa: PLR2004 - as many as were asked for
            continue
        # A name may hold commas, and its arguments may hold a key: the program alone is shown.
        name = ",".join(cells[2:-1]).split(" --")[0]
        yield cells[0], Holder(int(cells[1]), name[:_SHOWN] or "unnamed", _bytes(cells[-1]))


def _bytes(mib: str) -> int | None:
    """Return MiB as bytes; None for `[N/A]`, as integrated GPUs and containers say."""
    return int(mib) * _MIB if mib.isdigit() else None


def topology(text: str) -> dict[tuple[int, int], str]:
    """Read the table of `nvidia-smi topo -m`: how two cards are joined, lower index first."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    head = next((words for words in lines if words and words[0].startswith("GPU")), [])
    columns = [int(name[3:]) for name in head if re.fullmatch(r"GPU\d+", name)]
    joined: dict[tuple[int, int], str] = {}
    for words in lines[lines.index(head) + 1 :] if head else []:
        if words and re.fullmatch(r"GPU\d+", words[0]):
            row = int(words[0][3:])
            joined |= {(row, col): kind for col, kind in zip(columns, words[1:], strict=False) if row < col}
    return joined
