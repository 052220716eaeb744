"""The estimators' defaults against scikit-learn's, on the data sets bundled with scikit-learn.

Three times five-fold cross-validation; both peers with their defaults, logistic regression (diabetes:
ridge) behind a StandardScaler. ``--validate`` prints what the defaults were chosen by: rows inside the
training part of the first fold, and simulated data; test folds of the table had no part in it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.app.provenance import rounded
from studies.runner import Study, arguments, filled

__all__ = ["BUNDLED", "REGRESSION", "Spec", "load", "main", "page", "table"]

BUNDLED = ("breast_cancer", "wine", "digits", "iris", "diabetes")
SIMULATED = ("moons", "latent", "clusters", "friedman", "sparse_linear")
REGRESSION = ("diabetes", "friedman", "sparse_linear")
OURS = "sparsebnn"


@dataclass(frozen=True)
class Spec:
    """What the table is made from."""

    data: tuple[str, ...] = BUNDLED
    repeats: int = 3
    folds: int = 5
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One method on one data set: an entry per fold. Regression has R² and no log-loss."""

    data: str
    method: str
    score: list[float]
    log_loss: list[float] | None
    seconds: list[float]


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A bundled or simulated data set."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError("This study needs 'scikit-learn': pip install 'sparsebnn[sklearn]'") from error
    if name in BUNDLED:
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    random = np.random.RandomState(7)
    if name == "friedman":
        return datasets.make_friedman1(300, 10, noise=1.0, random_state=3)
    if name == "sparse_linear":
        x = random.randn(200, 15)
        return x, 2.0 * x[:, 0] - x[:, 1] + 2.0 * random.randn(200)
    if name == "moons":
        x, y = datasets.make_moons(400, noise=0.25, random_state=2)
        return np.column_stack([x, random.randn(400, 6)]), y
    if name == "clusters":
        return datasets.make_classification(
            300, 12, n_informative=5, n_classes=3, class_sep=1.5, random_state=4
        )
    hidden = random.randn(500, 6)
    x = hidden @ random.randn(6, 25) + 0.5 * random.randn(500, 25)
    score = 3.0 * hidden[:, 0] + 2.0 * hidden[:, 1] - hidden[:, 2] + 0.7 * random.logistic(size=500)
    return x, (score > 0).astype(int)


def _methods(name: str, seed: int, **settings: Any) -> dict[str, Callable[[], Any]]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from sparsebnn.estimators import SparseBNNClassifier, SparseBNNRegressor

    if name in REGRESSION:
        return {
            OURS: lambda: SparseBNNRegressor(random_state=seed, device="cpu", **settings),
            "ridge regression": lambda: make_pipeline(StandardScaler(), Ridge()),
            "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=seed),
        }
    return {
        OURS: lambda: SparseBNNClassifier(random_state=seed, device="cpu", **settings),
        "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=seed),
    }


def _splits(
    name: str, y: np.ndarray, folds: int, repeats: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold

    kind = RepeatedKFold if name in REGRESSION else RepeatedStratifiedKFold
    yield from kind(n_splits=folds, n_repeats=repeats, random_state=seed).split(np.empty((len(y), 1)), y)


def _measure(
    name: str, method: str, make: Callable[[], Any], x: np.ndarray, y: np.ndarray, splits: Any
) -> Row:
    from sklearn.metrics import log_loss

    scores, losses, seconds = [], [], []
    for training, test in splits:
        began = time.perf_counter()
        model = make().fit(x[training], y[training])
        seconds.append(time.perf_counter() - began)
        scores.append(float(model.score(x[test], y[test])))
        if name not in REGRESSION:
            losses.append(float(log_loss(y[test], model.predict_proba(x[test]), labels=model.classes_)))
    return Row(name, method, scores, losses or None, seconds)


def run(spec: Spec, tell: Callable[[str], None] = print) -> list[Row]:
    """All methods on all data sets, the same folds for each."""
    rows = []
    for name in spec.data:
        x, y = load(name)
        splits = list(_splits(name, y, spec.folds, spec.repeats, spec.seed))
        for method, make in _methods(name, spec.seed).items():
            rows.append(_measure(name, method, make, x, y, splits))
            loss = "" if rows[-1].log_loss is None else f"  log-loss {np.mean(rows[-1].log_loss):.4f}"
            tell(f"{name:<14}{method:<22}{np.mean(rows[-1].score):.4f}{loss}  {sum(rows[-1].seconds):.0f} s")
    return rows


def validate(seed: int, tell: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Temperatures, on two of four inner folds of the first training part, and on simulated data."""
    found = []
    for name in (*BUNDLED, *SIMULATED):
        x, y = load(name)
        if name in BUNDLED:
            training, _ = next(_splits(name, y, 5, 1, seed))
            x, y = x[training], y[training]
        splits = list(_splits(name, y, 4, 1, seed + 1))[:2]
        candidates = (0.5, 0.75, 1.0) if name in REGRESSION else (0.1, 0.15, 0.2)
        makers = {
            f"{OURS} at temperature {t:g}": _methods(name, seed, temperature=t)[OURS] for t in candidates
        }
        others = _methods(name, seed)
        makers |= {method: others[method] for method in others if method != OURS}
        for method, make in makers.items():
            row = _measure(name, method, make, x, y, splits)
            loss = None if row.log_loss is None else float(np.mean(row.log_loss))
            score = float(np.mean(row.score))
            found.append({"data": name, "method": method, "score": score, "log_loss": loss})
            tell(f"{name:<14}{method:<30}{score:.4f}  {'' if loss is None else f'{loss:.4f}'}")
    return found


# -- the page -----------------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/studies/defaults.md from the rows of the result file."""
    lines = [
        "| data | method | accuracy (diabetes: R²) | against the best peer "
        "| log-loss | against the best peer | seconds a fit |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        peers = [row for row in own if row["method"] != OURS]
        if name in REGRESSION:
            # The aim is stated against ridge regression.
            peers = [row for row in peers if row["method"] == "ridge regression"]
        best = max(float(np.mean(row["score"])) for row in peers)
        low = None if name in REGRESSION else min(float(np.mean(row["log_loss"])) for row in peers)
        for row in own:
            score, ours = float(np.mean(row["score"])), row["method"] == OURS
            cells = [name.replace("_", " "), row["method"], f"{score:.4f}"]
            cells.append(f"{score - best:+.4f}" if ours else "")
            if low is None:
                cells += ["", ""]
            else:
                loss = float(np.mean(row["log_loss"]))
                cells += [f"{loss:.4f}", f"{loss - low:+.4f}" if ours else ""]
            lines.append("| " + " | ".join([*cells, f"{np.mean(row['seconds']):.2f}"]) + " |")
    return "\n".join(lines)


def page(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with its table renewed."""
    return filled(text, table(rows), "defaults")


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies defaults``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--validate", action="store_true", help="what the defaults were chosen by")
    options.add_argument(
        "--data", nargs="+", choices=BUNDLED, help="only these tables; their results go to separate files"
    )
    given = arguments("defaults", "The estimators' defaults against scikit-learn's.", argv, [options])
    study = Study("defaults", given)
    if given.validate:
        study.save(None, [given.seed], stem="validation", rows=validate(given.seed))
        return 0
    spec = Spec(seed=given.seed)
    if given.quick:
        spec = Spec(("iris", "diabetes"), repeats=1, folds=2, seed=given.seed)
    elif given.data:
        spec = Spec(tuple(given.data), seed=given.seed)
    rows = [row.__dict__ for row in run(spec)]
    study.save(spec, [given.seed], stem="_".join(given.data or ["defaults"]), rows=rows)
    print(table(rows))
    text = Path(given.out) / "docs" / "studies" / "defaults.md"
    if text.is_file() and not given.quick and not given.data:
        text.write_text(page(text.read_text(encoding="utf-8"), rounded(rows)), encoding="utf-8")
    return 0
