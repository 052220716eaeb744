"""Survival: concordance and integrated Brier score on seven data sets, next to scikit-survival's methods.

Three-fold cross-validation, the same folds for all. Peers get imputed, standardized and one-hot encoded
columns; our estimator gets the table. ``--validate`` prints what our defaults were chosen by, on others.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.runner import Study, append_rows, arguments, fill_page, read_rows

__all__ = ["Spec", "main", "table"]

OURS = "sparsebnn"
# Of SurvSet; the rest are for validation. Large tables are cut to the first rows of a permutation.
DATA = ("veteran", "pbc", "whas500", "GBSG2", "colon", "flchain", "support2")
VALIDATION = ("Melanoma", "e1684", "zinc", "uis")
MOST_ROWS = 700
# Columns that describe what happened later: the cause of death, the state after two months.
LATER = {"flchain": "fac_chapter", "support2": "fac_sfdm2"}
SLOW = "LassoNet-Cox"
_EVENT = [("event", bool), ("time", float)]


@dataclass(frozen=True)
class Spec:
    """What the table is made from."""

    data: tuple[str, ...] = DATA
    folds: int = 3
    seed: int = 0
    most_rows: int = MOST_ROWS


def load(name: str, most_rows: int, seed: int) -> tuple[Any, np.ndarray]:
    """A frame and scikit-survival's structured array."""
    try:
        from SurvSet.data import SurvLoader
    except ImportError as error:
        raise ImportError("This study needs 'SurvSet': pip install 'sparsebnn[peers]'") from error
    frame = SurvLoader().load_dataset(name)["df"]
    frame = frame[frame["time"] > 0]
    order = np.random.RandomState(seed).permutation(len(frame))[:most_rows]
    frame = frame.iloc[order].reset_index(drop=True)
    y = np.zeros(len(frame), dtype=_EVENT)
    y["event"], y["time"] = frame["event"] == 1, frame["time"]
    later = [LATER[name]] if name in LATER else []
    return frame.drop(columns=["pid", "event", "time", *later]), y


def encoded(x: Any, training: np.ndarray) -> np.ndarray:
    """Imputed, standardized and one-hot encoded by the training rows, for peers."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [c for c in x.columns if c.startswith("num_")]
    rest = [c for c in x.columns if c not in numbers]
    once = OneHotEncoder(drop="first", sparse_output=False, handle_unknown="ignore", min_frequency=5)
    parts = [
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("rest", make_pipeline(SimpleImputer(strategy="most_frequent"), once), rest),
    ]
    x = x.astype({c: object for c in rest})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ColumnTransformer(parts).fit(x.iloc[training]).transform(x)
    return found[:, found[training].std(0) > 0.0]


class _LassoNetCox:
    """LassoNet's Cox regression: the model of its path with the best concordance on a fifth of the rows."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def fit(self, x: np.ndarray, y: np.ndarray) -> _LassoNetCox:
        from lassonet import LassoNetCoxRegressor
        from sksurv.metrics import concordance_index_censored

        order = np.random.RandomState(self.seed).permutation(len(x))
        held, own = order[: len(x) // 5], order[len(x) // 5 :]
        target = np.stack([y["time"], y["event"]], axis=1).astype(np.float32)
        self.model = LassoNetCoxRegressor(
            tie_approximation="efron",
            hidden_dims=(32,),
            path_multiplier=1.15,
            n_iters=(200, 30),
            patience=(20, 5),
            random_state=self.seed,
        )
        best = -1.0
        path = self.model.path(x[own].astype(np.float32), target[own], return_state_dicts=True)
        for point in path:
            self.model.load(point.state_dict)
            risk = self.predict(x[held])
            found = concordance_index_censored(y["event"][held], y["time"][held], risk)[0]
            if found > best:
                best, chosen = found, point.state_dict
        self.model.load(chosen)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(x.astype(np.float32))).ravel()


def _elastic_net(seed: int) -> Any:
    from sklearn.model_selection import GridSearchCV, KFold
    from sksurv.linear_model import CoxnetSurvivalAnalysis

    def one(alpha: float) -> Any:
        return CoxnetSurvivalAnalysis(l1_ratio=0.5, alphas=[alpha], fit_baseline_model=True)

    grid = {"alphas": [[a] for a in 10.0 ** np.linspace(-3, 0, 10)]}
    return GridSearchCV(one(0.1), grid, cv=KFold(4, shuffle=True, random_state=seed), error_score=0.5)


def methods(seed: int, **settings: Any) -> dict[str, Callable[[], Any]]:
    """Name to a function that makes an unfitted model."""
    from sksurv.ensemble import GradientBoostingSurvivalAnalysis, RandomSurvivalForest
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    from sparsebnn.estimators import SparseBNNSurvival

    return {
        OURS: lambda: SparseBNNSurvival(random_state=seed, device="cpu", **settings),
        "Cox": lambda: CoxPHSurvivalAnalysis(alpha=1e-3),
        "elastic-net Cox": lambda: _elastic_net(seed),
        "random survival forest": lambda: RandomSurvivalForest(
            100, min_samples_leaf=15, max_features="sqrt", random_state=seed
        ),
        "gradient boosting": lambda: GradientBoostingSurvivalAnalysis(
            n_estimators=100, subsample=0.5, max_depth=2, random_state=seed
        ),
        "LassoNet-Cox": lambda: _LassoNetCox(seed),
    }


def splits(y: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import StratifiedKFold

    kind = StratifiedKFold(folds, shuffle=True, random_state=seed)
    yield from kind.split(np.empty((len(y), 1)), y["event"])


def survival_at(model: Any, rows: Any, times: np.ndarray) -> np.ndarray:
    """``(rows, times)``: the probability to survive.

    scikit-survival raises a baseline survival function to powers, which is 0 wherever the baseline is less
    than 1e-308. Models with a baseline therefore go through their cumulative hazard.
    """
    if hasattr(model, "_baseline_model") or hasattr(model, "_baseline_models"):
        return np.exp(-np.stack([h(times) for h in model.predict_cumulative_hazard_function(rows)]))
    return np.stack([curve(times) for curve in model.predict_survival_function(rows)])


def measured(model: Any, x: Any, y: np.ndarray, training: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Concordance, integrated Brier score and seconds of one method on one split."""
    from sksurv.metrics import concordance_index_censored, integrated_brier_score

    rows = (x.iloc[training], x.iloc[test]) if hasattr(x, "iloc") else (x[training], x[test])
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence of peers, columns of ours
        model.fit(rows[0], y[training])
        seconds = time.perf_counter() - began
        model = getattr(model, "best_estimator_", model)  # of a grid search
        risk = model.predict(rows[1])
        found = {
            "concordance": float(concordance_index_censored(y["event"][test], y["time"][test], risk)[0]),
            "ibs": None,
            "seconds": seconds,
        }
        if not hasattr(model, "predict_survival_function"):
            return found
        # Times between the first and the last that training and test rows share.
        events = y["time"][training][y["event"][training]]
        last = min(y["time"][test].max(), y["time"][training].max())
        times = np.unique(np.quantile(events, np.linspace(0.1, 0.9, 30)))
        times = times[(times < last) & (times > y["time"][test].min())]
        inside = y["time"][test] < y["time"][training].max()
        values = survival_at(model, rows[1][inside], times)
        found["ibs"] = float(integrated_brier_score(y[training], y[test][inside], values, times))
    return found


def run(
    spec: Spec,
    study: Study,
    chosen: Sequence[str] | None = None,
    tell: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """The methods on all data sets and folds; rows that are there already are kept."""
    path = study.folder / "rows.jsonl"
    done = {(r["data"], r["method"], r["fold"]) for r in read_rows(path)}
    jobs = [(name, slow) for slow in (False, True) for name in spec.data]  # the slowest method comes last
    for name, slow in jobs:
        x, y = load(name, spec.most_rows, spec.seed)
        for fold, (training, test) in enumerate(splits(y, spec.folds, spec.seed)):
            plain = encoded(x, training)
            for method, make in methods(spec.seed + fold).items():
                if (name, method, fold) in done or slow != (method == SLOW):
                    continue
                if chosen is not None and method not in chosen:
                    continue
                row = {"data": name, "method": method, "fold": fold, "rows": len(y), "seed": spec.seed + fold}
                row |= measured(make(), x if method == OURS else plain, y, training, test)
                study.append([row])
                tell(f"{name:<10}{method:<24}{fold}  {row['concordance']:.3f}  {row['seconds']:.1f} s")
    return read_rows(path)


def validate(study: Study, tell: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Settings of ours, with few replicates, on other data sets, two of five folds each."""
    options: dict[str, dict[str, Any]] = {
        "temperature 0.15": {"temperature": 0.15},
        "temperature 0.5": {"temperature": 0.5},
        "temperature 1": {"temperature": 1.0},
        "temperature 1, linear": {"temperature": 1.0, "hidden": ()},
        "temperature 1, Cox": {"temperature": 1.0, "likelihood": "cox"},
    }
    options |= {f"rate {r:g}": {"learning_rate": r, "replicates": 4} for r in (0.04, 0.02, 0.01)}
    path = study.folder / "validation.jsonl"
    done = {(r["data"], r["method"], r["fold"]) for r in read_rows(path)}
    for name in VALIDATION:
        x, y = load(name, MOST_ROWS, study.given.seed)
        for fold, (training, test) in list(enumerate(splits(y, 5, study.given.seed)))[:2]:
            for label, settings in options.items():
                if (name, label, fold) not in done:
                    model = methods(study.given.seed, **{"replicates": 2, **settings})[OURS]()
                    row = {
                        "data": name,
                        "method": label,
                        "fold": fold,
                        **measured(model, x, y, training, test),
                    }
                    append_rows(path, [row])
                    tell(f"{name:<10}{label:<30}{fold}  {row['concordance']:.3f}  {row['ibs']:.4f}")
    return read_rows(path)


# -- the page -------------------------------------------------------------------------------------------


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(
        values
    ) > 1 else 0.0


def verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[bool, bool]]:
    """For each data set: is our concordance within one standard error of the best, and our IBS the best?"""
    found = {}
    for name in dict.fromkeys(row["data"] for row in rows if row["method"] == OURS):
        own = [row for row in rows if row["data"] == name]
        kinds = list(dict.fromkeys(row["method"] for row in own))
        scores = {k: _mean_and_error([r["concordance"] for r in own if r["method"] == k]) for k in kinds}
        best = max(scores, key=lambda k: scores[k][0])
        near = scores[OURS][0] >= scores[best][0] - scores[best][1]
        losses = {k: [r["ibs"] for r in own if r["method"] == k and r["ibs"] is not None] for k in kinds}
        means = {k: float(np.mean(v)) for k, v in losses.items() if v}
        found[name] = (near, means[OURS] <= min(means.values()))
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Concordance, integrated Brier score (both with standard errors over folds) and seconds."""
    lines = [
        "| data | method | concordance | integrated Brier score | seconds a fit |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    kinds = list(dict.fromkeys(row["method"] for row in rows))
    kinds.sort(key=lambda kind: kind != OURS)  # ours first, whenever it was run
    for name in [each for each in dict.fromkeys((*DATA, *(row["data"] for row in rows)))]:
        for method in [k for k in kinds if any((r["data"], r["method"]) == (name, k) for r in rows)]:
            own = [r for r in rows if r["data"] == name and r["method"] == method]
            score, error = _mean_and_error([r["concordance"] for r in own])
            losses = [r["ibs"] for r in own if r["ibs"] is not None]
            loss = "{:.4f} ± {:.4f}".format(*_mean_and_error(losses)) if losses else ""
            seconds = np.mean([r["seconds"] for r in own])
            cells = [name, method, f"{score:.3f} ± {error:.3f}", loss, f"{seconds:.1f}"]
            lines.append("| " + " | ".join(cells) + " |")
    judged = verdicts(rows)
    near, best = (sum(v[i] for v in judged.values()) for i in (0, 1))
    lines += [
        "",
        f"Our concordance is within one standard error of the best mean on {near} of {len(judged)} data "
        f"sets, our integrated Brier score is the lowest on {best}.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m studies survival``"""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--methods", nargs="+", help="those of the table to run (default: all)")
    options.add_argument("--sets", nargs="+", choices=DATA, default=list(DATA), help="default: all")
    options.add_argument("--validate", action="store_true", help="what our defaults were chosen by")
    given = arguments("survival", "Survival analysis next to scikit-survival.", argv, [options])
    study = Study("survival", given)
    if given.validate:
        validate(study)
        return 0
    spec = Spec(tuple(given.sets), seed=given.seed)
    if given.quick:
        spec = Spec(("veteran",), folds=2, seed=given.seed)
    rows = run(spec, study, given.methods)
    print(table(rows))
    page = Path(given.out) / "docs" / "studies" / "survival.md"
    if page.is_file() and not given.quick:
        fill_page(page, table(rows), "survival")
    return 0
