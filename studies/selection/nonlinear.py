r"""Which inputs does a network find if effects are interactions and columns are correlated by 0.9?

Twenty standard normal columns, five of them real: a, b, c, d, e at random places,

.. math:: f = ab + cd + e, \qquad y = f / \operatorname{sd}(f) + \text{noise of standard deviation } 0.5.

In the *blocks* design five independent blocks of four columns are correlated by 0.9 within, and each has one
real column; in the *equal* design all twenty columns are. Networks with a mixture of replicates and default
fits choose columns and credible sets; LassoNet, Boruta and random-forest importance choose columns. Every
method runs with several seeds on every data set, for the stability of its choice.

Run: ``python -m studies nonlinear``. A row per design, data set, seed and method is appended to
``results/nonlinear/rows.jsonl``; rows that are there are kept.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsebnn
from sparsebnn.posteriors.learned_priors import EmpiricalPrior
from sparsebnn.selection import credible_sets, sample_inputs, select
from sparsebnn.training import Cosine
from studies.runner import Study, arguments, count, fill_page, read_rows
from studies.selection import column_methods

__all__ = ["METHODS", "Choice", "Spec", "found_by", "main", "simulated", "summary", "table"]

DESIGNS = ("blocks", "equal")
REAL = 5


@dataclass(frozen=True)
class Spec:
    """The whole study; ``hidden`` to ``learning_rate`` are the networks', chosen on data sets 100 and 101."""

    data_sets: int = 5
    seeds: int = 3
    rows: int = 600
    columns: int = 20
    correlation: float = 0.9
    replicates: int = 16
    hidden: int = 20
    inclusion_prob: float = 0.1
    epochs: int = 500
    batch_size: int = 200
    warmup: float = 0.2
    learning_rate: float = 0.04
    first: int = 0


@dataclass
class Choice:
    """What a method finds: masks of columns by rule (None: refused), and credible sets as column numbers."""

    rules: dict[str, np.ndarray | None]
    sets: list[tuple[int, ...]] | None = None


def simulated(design: str, number: int, spec: Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and the real columns in the order of the formula."""
    rng = np.random.default_rng([DESIGNS.index(design), number])
    groups = REAL if design == "blocks" else 1
    block = np.arange(spec.columns) % groups
    shared = rng.standard_normal((spec.rows, groups))
    own = rng.standard_normal((spec.rows, spec.columns))
    x = np.sqrt(spec.correlation) * shared[:, block] + np.sqrt(1.0 - spec.correlation) * own
    a, b, c, d, e = x[:, :REAL].T  # of separate blocks, where there are blocks
    signal = a * b + c * d + e
    y = signal / signal.std() + 0.5 * rng.standard_normal(spec.rows)
    order = rng.permutation(spec.columns)
    return x[:, order], y, np.argsort(order)[:REAL]


# --- methods -------------------------------------------------------------------------------------------


def _mixture(x: np.ndarray, y: np.ndarray, seed: int, spec: Spec) -> Choice:
    """A mixture of replicates of an input-skip network at temperature 1."""
    from sparsebnn.inference import mixture

    network = sparsebnn.mlp(
        [x.shape[1], spec.hidden, 1], input_skip=True, prior=EmpiricalPrior(spec.inclusion_prob)
    )
    data = torch.from_numpy(x).float(), torch.from_numpy((y - y.mean()) / y.std()).float()
    settings = sparsebnn.Settings(
        epochs=spec.epochs,
        batch_size=spec.batch_size,
        learning_rate=spec.learning_rate,
        learning_rates={"inclusion_logit": 3.0 * spec.learning_rate},
        schedule=Cosine(0.01),
        warmup=spec.warmup,
    )
    run = sparsebnn.train(
        network,
        data,
        likelihood="gaussian",
        settings=settings,
        replicates=spec.replicates,
        seed=1000 * seed,
        progress=False,
    )
    both = mixture(run, data, n_draws=200, seed=seed)
    found = _judged(run, x, "replicates", seed)
    weighted = _judged(both, x, "mixture", seed)
    return Choice(found.rules | weighted.rules, found.sets)


def _judged(source: Any, x: np.ndarray, name: str, seed: int) -> Choice:
    """Two thresholds of the inclusion, and Bayesian FDR where it is not refused; sets of drawn inputs."""
    rules: dict[str, np.ndarray | None] = {
        f"{name}, inclusion ≥ {least:g}": select(source, rule="threshold", threshold=least).chosen.numpy()
        for least in (0.5, 0.95)
    }
    try:
        rules[f"{name}, fdr .1"] = select(source, rule="fdr", level=0.1).chosen.numpy()
    except ValueError:
        rules[f"{name}, fdr .1"] = None
    drawn = sample_inputs(source, seed=seed)
    return Choice(rules, [one.members for one in credible_sets(drawn, x)])


def _default(x: np.ndarray, y: np.ndarray, seed: int, spec: Spec) -> Choice:
    """``SparseBNNRegressor`` as it is."""
    model = sparsebnn.SparseBNNRegressor(random_state=seed, device="cpu").fit(x, y)
    rules: dict[str, np.ndarray | None] = {
        "selected_features_ (fdr .1)": model.used_,
        "inclusion_ ≥ 0.5": model.inclusion_ >= 0.5,
        "inclusion_ ≥ 0.95": model.inclusion_ >= 0.95,
    }
    return Choice(rules, [one.members for one in model.credible_sets(x)])


def _peer(name: str) -> Callable[..., Choice]:
    def choose(x: np.ndarray, y: np.ndarray, seed: int, spec: Spec) -> Choice:
        # Peers also predict; two rows are enough.
        return Choice(column_methods.METHODS[name](x, y, x[:2], "regression", seed).rules)

    return choose


def _forest(x: np.ndarray, y: np.ndarray, seed: int, spec: Spec) -> Choice:
    """Permutation importance on a third of the rows, above two standard deviations; and the five largest."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    order = np.random.RandomState(seed).permutation(len(x))
    held, own = order[: len(x) // 3], order[len(x) // 3 :]
    forest = RandomForestRegressor(200, random_state=seed).fit(x[own], y[own])
    found = permutation_importance(forest, x[held], y[held], n_repeats=10, random_state=seed)
    largest = np.zeros(x.shape[1], dtype=bool)
    largest[np.argsort(-found.importances_mean)[:REAL]] = True
    sure = found.importances_mean > 2.0 * found.importances_std
    return Choice({"importance > 2 sd": sure, "five largest (number known)": largest})


METHODS: dict[str, Callable[..., Choice]] = {
    "networks": _mixture,
    "SparseBNNRegressor": _default,
    "LassoNet": _peer("LassoNet"),
    "Boruta": _peer("Boruta"),
    "random forest": _forest,
}


def found_by(method: str, design: str, number: int, seed: int, spec: Spec) -> dict[str, Any]:
    """The row of one method on one data set."""
    x, y, real = simulated(design, number, spec)
    x = (x - x.mean(0)) / x.std(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence of peers
        began = time.perf_counter()
        found = METHODS[method](x, y, seed, spec)
        seconds = time.perf_counter() - began
    rules = {rule: None if m is None else np.flatnonzero(m).tolist() for rule, m in found.rules.items()}
    sets = None if found.sets is None else [list(map(int, one)) for one in found.sets]
    return {"real": real.tolist(), "rules": rules, "sets": sets, "seconds": round(seconds, 2)}


# --- the tables ----------------------------------------------------------------------------------------


def _jaccard(chosen: Sequence[set[int]]) -> float:
    """Mean overlap of pairs; two empty choices agree.

    >>> _jaccard([{1, 2}, {1}, {1}])
    0.6666666666666666
    """
    pairs = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in itertools.combinations(chosen, 2)]
    return _mean(pairs)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Precision, recall and stability by design, method and rule; credible sets have separate lines."""
    lines = []
    for design, method in dict.fromkeys((row["design"], row["method"]) for row in rows):
        own = [row for row in rows if (row["design"], row["method"]) == (design, method)]
        seconds = float(np.mean([row["seconds"] for row in own]))
        about = {"design": design, "method": method, "seconds": seconds, "fits": len(own)}
        for rule in own[0]["rules"]:
            kept = [row for row in own if row["rules"][rule] is not None]
            line = _line([(set(r["rules"][rule]), set(r["real"]), r["data_set"]) for r in kept])
            lines.append(about | {"rule": rule, "refused": 1.0 - len(kept) / len(own)} | line)
        if own[0]["sets"] is not None:
            lines.append(about | {"rule": "credible sets", "refused": 0.0} | _set_line(own))
    return lines


def _line(found: Sequence[tuple[set[int], set[int], int]]) -> dict[str, Any]:
    """Nothing chosen has no precision."""
    precise = [len(chosen & real) / len(chosen) for chosen, real, _ in found if chosen]
    by_data: dict[int, list[set[int]]] = {}
    for chosen, _, number in found:
        by_data.setdefault(number, []).append(chosen)
    agreed = [_jaccard(each) for each in by_data.values() if len(each) > 1]
    return {
        "precision": _mean(precise),
        "recall": _mean([len(chosen & real) / len(real) for chosen, real, _ in found]),
        "stability": _mean(agreed),
        "chosen": _mean([len(chosen) for chosen, _, _ in found]),
    }


def _set_line(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sets that contain a real column, real columns in a set, overlap of members between seeds, sizes."""
    members = [({i for one in r["sets"] for i in one}, set(r["real"]), r["data_set"]) for r in rows]
    every = [(one, set(row["real"])) for row in rows for one in row["sets"]]
    line = _line(members)
    line["precision"] = _mean([float(bool(set(one) & real)) for one, real in every])
    line["sets"] = len(every) / len(rows)
    line["size"] = float(np.median([len(one) for one, _ in every])) if every else float("nan")
    return line


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A Markdown table per design."""
    made = []
    for design in dict.fromkeys(line["design"] for line in lines):
        made += [f"| {design} | rule | precision | recall | stability | columns | refused | seconds |"]
        made += ["|---|---|---|---|---|---|---|---|"]
        for line in (each for each in lines if each["design"] == design):
            columns = f"{line['chosen']:.1f}"
            if "sets" in line:
                columns += f" in {line['sets']:.1f} sets, median size {line['size']:g}"
            cells = [_number(line[name]) for name in ("precision", "recall", "stability")]
            refused = f"{line['refused']:.0%}" if line["refused"] else ""
            cells += [columns.replace("nan", "–"), refused, f"{line['seconds']:.1f}"]
            made.append(f"| {line['method']} | {line['rule']} | " + " | ".join(cells) + " |")
        made.append("")
    return "\n".join(made)


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


# --- the command ---------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, append its rows, and print the tables of all rows."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options.add_argument("--data-sets", type=count, help="per design (default 5)")
    claim = "Inputs that networks find if effects are interactions and columns correlate by 0.9."
    study = Study("nonlinear", arguments("nonlinear", claim, argv, [options]))
    given, spec = study.given, Spec(first=study.given.seed)
    if given.quick:
        spec = replace(spec, data_sets=1, seeds=2, rows=80, columns=6, replicates=3, epochs=20)
    spec = replace(spec, data_sets=given.data_sets or spec.data_sets)
    torch.set_num_threads(1)
    file = study.folder / "rows.jsonl"
    names = ("design", "method", "data_set", "seed")
    done = {tuple(row[name] for name in names) for row in read_rows(file)}
    numbers = range(spec.first, spec.first + spec.data_sets)
    for number, seed, design, method in itertools.product(numbers, range(spec.seeds), DESIGNS, given.methods):
        if (design, method, number, seed) not in done:
            row = found_by(method, design, number, seed, spec)
            study.append([dict(zip(names, (design, method, number, seed))) | row])
    lines = summary(sorted(read_rows(file), key=_order))
    print(table(lines))
    page = Path(given.out) / "docs" / "studies" / "nonlinear.md"
    if page.exists() and not given.quick:
        fill_page(page, table(lines))
    print(f"Wrote {file}.")


def _order(row: dict[str, Any]) -> tuple[int, int]:
    return DESIGNS.index(row["design"]), list(METHODS).index(row["method"])
