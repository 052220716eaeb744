"""The present defaults next to the previous, tempered ones, on new splits and new simulated tables.

Differences of a few predictions between two versions may be chance. So both are fitted to the same rows:
five-fold cross-validation, repeated with other folds, and tables with known truth, simulated with other
seeds. ``--checkout`` is a checkout of the previous version (``git worktree add FOLDER ea954ec``). Rows go to
``results/previous/rows.jsonl``; ``of`` is the commit of the package that was fitted.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.estimators.column_choice import scores
from studies.estimators.defaults import BUNDLED, REGRESSION, load
from studies.estimators.fit_of import Fits
from studies.peers import tabular_data
from studies.peers.tabular import splits
from studies.runner import Study, arguments, fill_page, read_rows
from studies.selection.column_methods import losses
from studies.selection.column_selection import Case, simulated

__all__ = ["REPEATS", "Spec", "difference", "main", "measured", "run", "table"]

_FOLDS = 5
_TEST_ROWS = 2000
_COLUMNS = {f"columns, correlation {rho:g}": rho for rho in (0.0, 0.5)}
VERSIONS = ("previous", "present")
MEASURES = {"accuracy": 4, "log-loss": 4, "RMSE": 4, "R²": 4, "recall": 3, "FDR": 3}
SHOWN = {
    **dict.fromkeys(_COLUMNS, ("recall", "FDR", "log-loss")),
    "iris": ("accuracy", "log-loss"),
    "diabetes": ("R²",),
    "saratoga": ("RMSE",),
    "ames": ("RMSE",),
}


@dataclass(frozen=True)
class Spec:
    """How often each is repeated; repetition k has the seed ``seed`` + k."""

    repeats: dict[str, int]
    seed: int = 1
    case: Case = Case("correlation", "classification", "nonlinear", 500, 100, 6)


REPEATS = {**dict.fromkeys(_COLUMNS, 30), "iris": 10, "diabetes": 5, "saratoga": 3, "ames": 1}


class Job(NamedTuple):
    """Rows to fit and to judge by; ``real`` are the columns that matter, ``unit`` that of the RMSE."""

    task: str
    x: Any
    y: np.ndarray
    test: Any
    of_test: np.ndarray
    unit: float = 1.0
    real: np.ndarray | None = None


def jobs(spec: Spec, name: str, seed: int) -> Iterator[Job]:
    """The folds of a table, or one simulated table."""
    if name in _COLUMNS:
        case = dataclasses.replace(spec.case, correlation=_COLUMNS[name])
        # Seeds below 2000 were used while the defaults were developed.
        x, y, real = simulated(case, 2000 + seed, case.rows + _TEST_ROWS)
        own, rest = slice(0, case.rows), slice(case.rows, None)
        x = (x - x[own].mean(0)) / x[own].std(0)
        yield Job(case.task, x[own], y[own], x[rest], y[rest], real=real)
        return
    if name in BUNDLED:
        x, y = load(name)
        task, cut = "regression" if name in REGRESSION else "classification", x
    else:
        x, y = tabular_data.load(name, 5000, 0)
        task, cut = tabular_data.TABLES[name].task, x.iloc
    for training, test in splits(y, task, _FOLDS, seed):
        yield Job(task, cut[training], y[training], cut[test], y[test], float(np.std(y)))


def measured(found: dict[str, Any], job: Job) -> dict[str, float]:
    """The measures of one fit."""
    own = losses(found["predicted"], job.of_test, job.task)
    if job.task == "regression":
        return {"RMSE": own["loss"] / job.unit, "R²": own["score"]}
    row = {"log-loss": own["loss"], "accuracy": own["score"]}
    if job.real is not None:
        chosen = scores(found["used"], job.real)
        row |= {"recall": chosen["recall"], "FDR": 1.0 - chosen["precision"]}
    return row


def run(spec: Spec, study: Study, checkouts: dict[str, Path]) -> list[dict[str, Any]]:
    """The missing rows; all rows of the file."""
    path = study.folder / "rows.jsonl"
    done = {(r["data"], r["version"], r["seed"], r["fold"]) for r in read_rows(path)}
    for version, checkout in checkouts.items():
        with Fits(checkout) as fits:
            for name, seed in [(n, spec.seed + k) for n, count in spec.repeats.items() for k in range(count)]:
                for fold, job in enumerate(jobs(spec, name, seed)):
                    if (name, version, seed, fold) in done:
                        continue
                    found = fits(job.task, job.x, job.y, job.test, seed)
                    row = {"data": name, "version": version, "seed": seed, "fold": fold}
                    row |= {**measured(found, job), "seconds": found["seconds"], "of": fits.commit}
                    study.append([row])
                    print(row, flush=True)
    return read_rows(path)


# -- the page -----------------------------------------------------------------------------------------


def difference(one: np.ndarray, other: np.ndarray, folds: int = 1) -> tuple[float, float]:
    """The mean difference, and its standard error.

    Test errors of folds depend on each other, since their training rows are nearly the same. For them the
    variance of the mean is s²(1/n + 1/(folds − 1)) (Nadeau and Bengio, 2003).

    >>> mean, error = difference(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.zeros(5), folds=5)
    >>> round(mean, 3), round(error, 3)
    (3.0, 1.061)
    """
    apart = one - other
    share = 1.0 / len(apart) + (1.0 / (folds - 1) if folds > 1 else 0.0)
    return float(apart.mean()), float(apart.std(ddof=1) * np.sqrt(share))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line per data set and measure: both versions, and their difference."""
    lines = ["| data | measure | fits | previous | present | difference |", "| --- | --- |" + " ---: |" * 4]
    for name, measures in SHOWN.items():
        of = {
            version: {(r["seed"], r["fold"]): r for r in rows if (r["data"], r["version"]) == (name, version)}
            for version in VERSIONS
        }
        both = sorted(of["previous"].keys() & of["present"].keys())
        for measure in measures if len(both) > 1 else ():
            was, now = (np.array([of[version][key][measure] for key in both]) for version in VERSIONS)
            mean, error = difference(now, was, 1 if name in _COLUMNS else _FOLDS)
            digits = MEASURES[measure]
            cells = [name, measure, f"{len(both)}", f"{was.mean():.{digits}f}"]
            cells += [f"{now.mean():.{digits}f}", f"{mean:+.{digits}f} ± {error:.{digits}f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies previous``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--checkout", type=Path, help="the previous version; none: write the page, fit nothing"
    )
    options.add_argument("--data", nargs="+", default=list(REPEATS), choices=list(REPEATS))
    given = arguments("previous", "The present defaults next to the previous ones.", argv, [options])
    study = Study("previous", given)
    spec = Spec({name: REPEATS[name] for name in given.data})
    if given.quick:
        case = dataclasses.replace(spec.case, rows=100, columns=8)
        spec = Spec({**dict.fromkeys(_COLUMNS, 2)}, case=case)
    if given.checkout is None:
        rows = read_rows(study.folder / "rows.jsonl")
    else:
        here = Path(__file__).resolve().parents[2]
        rows = run(spec, study, {"previous": given.checkout, "present": here})
    print(table(rows))
    page = Path(given.out) / "docs" / "studies" / "defaults.md"
    if page.is_file() and not given.quick:
        fill_page(page, table(rows), "previous")
    return 0
