"""The preprocessing of a table as tensor operations, so that an exported file takes raw columns.

A row is a vector of double precision with one number per column: the number itself, a date as days since
1970-01-01 (UTC), a percentage as the number before the sign, a time of day as hours, a category as its place
in :func:`levels`, −1 for a level that training did not have. NaN is a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsebnn.deploy.predictor import Predictor
from sparsebnn.estimators.columns import Column

__all__ = ["FARTHEST", "TableInputs", "TableModel", "has_range", "levels"]

FARTHEST = 1e30  # of a standardized number, so that networks of single precision do not overflow
_YEAR = 365.2425  # days, as in sparsebnn.estimators.columns


def levels(column: Column) -> tuple[str, ...]:
    """The levels of a category in the order of their codes 0, 1, 2, …"""
    return column.levels if column.reference is None else (*column.levels, column.reference)


def has_range(column: Column) -> bool:
    """Whether numbers of a column may lie outside the training range."""
    return column.kind != "dropped" and bool(column.ends) and not column.limits


class TableInputs(nn.Module):
    """Raw numbers ``(rows, columns)`` to the standardized inputs of a network, ``(rows, inputs)``.

    The same as the estimator's own encoding: missing values become the average, extreme values are clipped.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        numbers: list[tuple[int, float, float]] = []  # column, lower and upper limit
        free: list[tuple[float, float]] = []  # limits that do not go by the training range
        seasons: list[tuple[int, float]] = []  # column, phase
        levels_: list[tuple[int, float, float]] = []  # column, code, whether an unknown level is missing
        coded: list[tuple[int, int]] = []  # column, where its numbers begin in ``codes``
        codes: list[float] = []
        gaps: list[int] = []
        order: list[tuple[str, int]] = []

        for place, column in enumerate(columns):
            if column.kind == "dropped":
                continue
            if column.codes:
                for own in zip(*column.codes):
                    order.append(("coded", len(coded)))
                    coded.append((place, len(codes) + 1))
                    codes += [math.nan, *own]  # an unknown level has the code −1
            elif column.kind == "category":
                for code in range(len(column.levels)):
                    order.append(("level", len(levels_)))
                    levels_.append((place, float(code), float(column.reference is not None)))
            else:
                low, high = column.ends or (-math.inf, math.inf)
                order.append(("number", len(numbers)))
                numbers.append((place, low, high))
                free.append((column.limits[0], column.limits[1]) if column.limits else (-math.inf, math.inf))
            if column.kind == "date":
                for phase in (0.0, math.pi / 2.0):  # sine and cosine
                    order.append(("season", len(seasons)))
                    seasons.append((place, phase))
            if column.gaps:
                order.append(("gap", len(gaps)))
                gaps.append(place)

        starts = {"number": 0, "season": len(numbers)}
        starts["level"] = starts["season"] + len(seasons)
        starts["coded"] = starts["level"] + len(levels_)
        starts["gap"] = starts["coded"] + len(coded)
        index = [starts[kind] + place for kind, place in order]
        self._parts = (bool(numbers), bool(seasons), bool(levels_), bool(coded), bool(gaps))
        self._integers("order", index)
        self._integers("number_column", [n[0] for n in numbers])
        self._integers("season_column", [s[0] for s in seasons])
        self._integers("level_column", [entry[0] for entry in levels_])
        self._integers("coded_column", [entry[0] for entry in coded])
        self._integers("coded_start", [entry[1] for entry in coded])
        self._integers("gap_column", gaps)
        self._doubles("low", [n[1] for n in numbers])
        self._doubles("high", [n[2] for n in numbers])
        self._doubles("free_low", [limits[0] for limits in free])
        self._doubles("free_high", [limits[1] for limits in free])
        self._doubles("phase", [s[1] for s in seasons])
        self._doubles("code", [entry[1] for entry in levels_])
        self._doubles("two_levels", [entry[2] for entry in levels_])
        self._doubles("codes", codes)
        self._doubles("centre", [value for column in columns for value in column.centre])
        self._doubles("scale", [value for column in columns for value in column.scale])

    def _integers(self, name: str, values: Sequence[int]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.int64))

    def _doubles(self, name: str, values: Sequence[float]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, raw: Tensor, free: bool = False) -> Tensor:
        """``free`` numbers may lie outside the range of the training rows."""
        if not any(self._parts):  # no usable column: the network has one constant input
            return (0.0 * raw[:, :1].nan_to_num(0.0, 0.0, 0.0)).float()
        get = self.get_buffer
        found = []
        if self._parts[0]:
            own = raw[:, get("number_column")]
            low, high = (get("free_low"), get("free_high")) if free else (get("low"), get("high"))
            found.append(torch.minimum(torch.maximum(own, low), high))
        if self._parts[1]:
            turn = raw[:, get("season_column")] * (2.0 * math.pi / _YEAR)
            found.append(torch.sin(turn + get("phase")))
        if self._parts[2]:
            codes = raw[:, get("level_column")]
            equal = (codes == get("code")).double()
            missing = torch.isnan(codes) | ((codes < 0.0) & (get("two_levels") > 0.0))
            found.append(torch.where(missing, torch.full_like(equal, math.nan), equal))
        if self._parts[3]:
            place = raw[:, get("coded_column")].nan_to_num(-1.0).long()
            found.append(get("codes")[place + get("coded_start")])
        if self._parts[4]:
            found.append(torch.isnan(raw[:, get("gap_column")]).double())
        every = torch.cat(found, dim=1)[:, get("order")]
        scaled = (every - get("centre")) / get("scale")
        scaled = torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)
        return (scaled.clamp(-FARTHEST, FARTHEST) if free else scaled).float()


class TableModel(nn.Module):
    """Raw rows of a table to the outputs of a predictor."""

    def __init__(self, columns: Sequence[Column], predictor: Predictor) -> None:
        super().__init__()
        self.inputs = TableInputs(columns)
        self.predictor = predictor
        self._widens = bool(predictor.probes) and any(map(has_range, columns))

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        free = self.inputs(raw, free=True) if self._widens else None
        return self.predictor(self.inputs(raw), free)
