"""Records of runs that never were: what ``sparsebnn fit`` writes, with made-up numbers."""

from __future__ import annotations

import math
import random

NAMES = ["glucose", "age", "body mass", "blood pressure", "insulin", "pregnancies", "ward = north"]


def figure(value, spread=0.02):
    return {"value": value, "low": value - spread, "high": value + spread}


def network(rng, sizes, input_names, output_names, keep):
    edges = [
        [layer, i, j, rng.uniform(0.5, 1), rng.gauss(0, 1)]
        for layer, (wide, narrow) in enumerate(zip(sizes, sizes[1:]))
        for i in range(wide)
        for j in range(narrow)
        if rng.random() < keep
    ]
    return {
        "layers": list(sizes),
        "input_names": list(input_names),
        "output_names": list(output_names),
        "edges": edges,
        "of": len(edges),
    }


def example(task="classification", names=None, replicates=3, hidden=(12, 8), seed=0, keep=0.25):
    """A whole record. Names default to those of a hospital's table."""
    rng = random.Random(seed)
    names = names or NAMES
    classes = ["healthy", "diabetic"] if task == "classification" else None
    inclusion = sorted((rng.betavariate(0.6, 0.6) for _ in names), reverse=True)
    signs = ("+", "-", "mixed", None)
    metrics = {
        "classification": {"accuracy": 0.86, "nll": 0.34, "brier": 0.19, "ece": 0.03},
        "regression": {"r2": 0.48, "rmse": 54.2, "nll": 5.41},
    }[task]
    near = {key: figure(value) for key, value in metrics.items()}
    low = figure(0.64) if task == "classification" else figure(-0.01)
    head = "accuracy" if task == "classification" else "r2"
    values = {name: rng.choice([round(rng.gauss(0, 30), 2), "north", None]) for name in names}
    row = {"truth": "healthy", "prediction": "healthy", "probability": 0.99, "std": 3.1, "entropy": 0.05}
    unsure = {**row, "prediction": "diabetic", "probability": 0.51, "std": 60.0, "entropy": 0.69}
    calibration = (
        {"confidence": [0.55, 0.7, 0.85, 0.97], "accuracy": [0.5, 0.71, 0.83, 0.99], "rows": [20, 25, 40, 80]}
        if task == "classification"
        else {"level": [0.5, 0.8, 0.9, 0.95], "coverage": [0.47, 0.79, 0.88, 0.96]}
    )
    return {
        "format_version": 1,
        "task": task,
        "target": "diabetes",
        "classes": classes,
        "data": {
            "name": "patients.csv",
            "rows": 768,
            "train_rows": 603,
            "test_rows": 165,
            "columns": [
                *({"name": name, "kind": "number", "note": ""} for name in names),
                {"name": "id", "kind": "dropped", "note": "a different value in every row"},
            ],
        },
        "settings": {"family": "flow", "hidden": list(hidden), "epochs": 200, "prior_inclusion": 0.1},
        "seconds": 12.4,
        "versions": {"sparsebnn": "0.1.0", "torch": "2.13.0"},
        "command": "sparsebnn fit patients.csv --target diabetes",
        "commit": None,
        "metrics": {"average": near, "median": {key: figure(value, 0.03) for key, value in metrics.items()}},
        "baselines": [
            {
                "name": "majority class" if classes else "mean",
                "metrics": {head: low},
                "difference": {head: figure(metrics[head] - low["value"])},
            },
            {"name": "logistic regression" if classes else "ridge regression", "metrics": near},
            {
                "name": "gradient boosting",
                "metrics": {**near, head: figure(metrics[head] + 0.01)},
                "difference": {key: figure(-0.01) for key in metrics if key != "ece"},
            },
        ],
        "density": 0.083,
        "replicates": replicates,
        "inputs": [
            {
                "name": name,
                "inclusion": prob,
                "selected": prob > 0.5,
                "direction": signs[place % 4],
                "effect": round(rng.gauss(0, 1), 3),
                "effect_low": -1.5,
                "effect_high": 1.5,
                "stability": round(prob * replicates) / replicates,
                "gain": prob / 10,
            }
            for place, (name, prob) in enumerate(zip(names, inclusion))
        ],
        "credible_sets": [
            {"names": names[1:3], "inclusion": [0.61, 0.42], "coverage": 0.973, "purity": 0.88},
            {"names": names[:1], "inclusion": [0.98], "coverage": 0.98, "purity": 1.0},
        ][len(names) < 3 :],
        "calibration": calibration,
        "effects": [
            {
                "name": names[0],
                "kind": "number",
                "outputs": ["diabetic"],
                "grid": [1.0, 2.5, 4.0],
                "mean": [[0.2, 0.5, 0.6]],
                "low": [[0.1, 0.4, 0.5]],
                "high": [[0.3, 0.6, 0.7]],
            },
            {
                "name": names[-1],
                "kind": "category",
                "outputs": ["diabetic"],
                "grid": ["north", "south"],
                "mean": [[0.2, 0.6]],
                "low": [[0.1, 0.5]],
                "high": [[0.3, 0.7]],
            },
        ],
        "confusion": [[80, 20], [10, 55]] if classes else None,
        "ranking": [
            {
                "name": "diabetic",
                "share": 0.4,
                "auc": 0.9,
                "precision": 0.85,
                "roc": [[0.0, 0.0], [0.2, 0.8], [1.0, 1.0]],
                "recall": [[0.0, 1.0], [0.8, 0.8], [1.0, 0.4]],
            }
        ]
        if classes
        else None,
        "residuals": None if classes else [[rng.gauss(100, 30), rng.gauss(100, 40), 30.0] for _ in range(60)],
        "certain": [{"row": k, **row, "values": values} for k in range(5)],
        "uncertain": [{"row": 90 + k, **unsure, "values": values} for k in range(5)],
        "network": network(
            rng, (len(names), *hidden, 2 if classes else 1), names, classes or ["diabetes"], keep
        ),
        "curves": [
            {
                "epoch": epoch,
                "loss": [900 * math.exp(-epoch / 20) + 250 + 8 * rng.random() for _ in range(replicates)],
                "nll": [500 * math.exp(-epoch / 20) + 150 + 8 * rng.random() for _ in range(replicates)],
                "kl": [4000 * math.exp(-epoch / 15) + 90 for _ in range(replicates)],
                "density": [0.9 * math.exp(-epoch / 25) + 0.083 for _ in range(replicates)],
            }
            for epoch in range(1, 101)
        ],
    }
