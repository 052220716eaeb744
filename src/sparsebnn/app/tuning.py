"""``sparsebnn fit --tune 30``: a search over settings by cross-validation, with Optuna and joblib."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from sparsebnn.app.jobs import in_parallel

__all__ = ["search"]

_FOLDS = 3
_AT_ONCE = 4  # trials that are proposed together, whatever the number of workers


def search(
    model: Any, x: Any, y: np.ndarray, trials: int, seed: int, storage: Path | None = None, workers: int = 1
) -> dict[str, Any]:
    """The settings with the best cross-validated score (log loss, or R²); the defaults compete.

    Four trials are proposed at a time by Optuna's Tree-structured Parzen Estimator, with seeds that depend on
    the trial's number, so the search has the same result on any backend of joblib. ``storage`` is a SQLite
    file: a search that was interrupted continues with its trials.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError("--tune needs Optuna: pip install 'sparsebnn[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where = None if storage is None else f"sqlite:///{storage}"
    study = optuna.create_study(
        storage=where, study_name="sparsebnn", direction="maximize", load_if_exists=True
    )
    for unfinished in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(unfinished.number, state=optuna.trial.TrialState.FAIL)
    folds = _folds(y, seed, hasattr(model, "predict_proba"))
    if "default" not in study.user_attrs:
        study.set_user_attr("default", _scores(model, x, y, folds, [{}], workers)[0])
    while (left := trials - len(_finished(optuna, study))) > 0:
        asked = []
        for _ in range(min(left, _AT_ONCE)):
            study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), constant_liar=True)
            trial = study.ask()
            asked.append((trial, _proposed(trial)))  # with the sampler of this trial
        found = _scores(model, x, y, folds, [given for _, given in asked], workers)
        for (trial, _), score in zip(asked, found):
            study.tell(trial, score)
    best = max(_finished(optuna, study), key=lambda trial: trial.value, default=None)
    if best is None or best.value <= study.user_attrs["default"]:
        return {}
    return dict(best.params)


def _finished(optuna: Any, study: Any) -> list[Any]:
    return study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))


def _proposed(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 0.1, log=True),
        "temperature": trial.suggest_float("temperature", 0.01, 1.0, log=True),
        "prior_inclusion": trial.suggest_float("prior_inclusion", 0.02, 0.5, log=True),
    }


def _folds(y: np.ndarray, seed: int, classes: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import KFold, StratifiedKFold

    enough = not classes or np.unique(y, return_counts=True)[1].min() >= _FOLDS
    kind = StratifiedKFold if classes and enough else KFold
    return list(kind(_FOLDS, shuffle=True, random_state=seed).split(np.zeros(len(y)), y))


def _scores(
    model: Any, x: Any, y: np.ndarray, folds: list[Any], given: list[dict[str, Any]], workers: int
) -> list[float]:
    """The mean score over folds of each set of parameters; every fold of every set is a job."""
    jobs = [functools.partial(_score, model, x, y, fold, values) for values in given for fold in folds]
    found = in_parallel(jobs, workers)
    return [float(np.mean(found[i : i + len(folds)])) for i in range(0, len(found), len(folds))]


def _score(model: Any, x: Any, y: np.ndarray, fold: tuple[Any, Any], values: dict[str, Any]) -> float:
    import warnings

    import torch
    from sklearn.base import clone

    torch.set_num_threads(1)
    train, test = fold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the final fit repeats them
        fitted = clone(model).set_params(**values).fit(_rows(x, train), y[train])
    if not hasattr(fitted, "predict_proba"):
        return float(fitted.score(_rows(x, test), y[test]))
    probs = fitted.predict_proba(_rows(x, test))
    place = {label: i for i, label in enumerate(fitted.classes_.tolist())}
    own = [probs[i, place[label]] if label in place else 0.0 for i, label in enumerate(y[test].tolist())]
    return float(np.log(np.clip(own, 1e-12, 1.0)).mean())


def _rows(x: Any, index: np.ndarray) -> Any:
    return x.iloc[index] if hasattr(x, "iloc") else x[index]
