"""Figures, and the table that they are printed in."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Samples:
    """Measured values of one figure, in the unit of its row. `note` qualifies them, in a word or two."""

    values: tuple[float, ...]
    note: str = ""

    def median(self) -> float:
        return statistics.median(self.values)

    def show(self) -> str:
        middle = _short(self.median())
        low, high = _short(min(self.values)), _short(max(self.values))
        spread = "" if len(self.values) == 1 or low == high else f" ({low}-{high})"
        return middle + spread + (f", {self.note}" if self.note else "")

    def as_json(self) -> object:
        return {"samples": list(self.values), "median": self.median(), "note": self.note}


Cell = Samples | str
"""What was measured, or why there is nothing to measure."""


def samples(values: Sequence[float], note: str = "") -> Samples:
    return Samples(tuple(values), note)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


@dataclass
class Row:
    """One figure of several columns."""

    name: str
    unit: str
    cells: dict[str, Cell] = field(default_factory=dict)

    def head(self) -> str:
        counts = {len(cell.values) for cell in self.cells.values() if isinstance(cell, Samples)}
        number = f" n={max(counts)}" if counts and max(counts) > 1 else ""
        return f"{self.name}, {self.unit}{number}" if self.unit else f"{self.name}{number}"

    def as_json(self) -> object:
        cells = {name: cell if isinstance(cell, str) else cell.as_json() for name, cell in self.cells.items()}
        return {"name": self.name, "unit": self.unit, "cells": cells}


@dataclass
class Table:
    """Rows of figures over the same columns."""

    title: str
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)

    def show(self) -> str:
        """Return plain text: the figure's name above its values, so that a line fits a terminal."""
        shown = [[_text(row.cells.get(column, "-")) for column in self.columns] for row in self.rows]
        widths = [max(len(column), *(len(cells[i]) for cells in shown), 1) for i, column in enumerate(self.columns)]
        label = max((len(row.head()) for row in self.rows), default=0)
        lines = [self.title, ""]
        lines.append(_line("", label, self.columns, widths))
        lines.extend(_line(row.head(), label, cells, widths) for row, cells in zip(self.rows, shown, strict=True))
        return "\n".join(lines)

    def as_json(self) -> object:
        return {"title": self.title, "rows": [row.as_json() for row in self.rows]}

    def put(self, name: str, unit: str, cells: Mapping[str, Cell]) -> None:
        self.rows.append(Row(name, unit, dict(cells)))


def _line(label: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(each) for cell, each in zip(cells, widths, strict=True))
    return f"{label.ljust(width)}  {'  '.join(padded)}".rstrip()


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.show()


def _short(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
