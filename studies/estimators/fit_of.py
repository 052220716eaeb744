"""Fit estimators with the defaults of any version of the package, in a separate process.

The process reads pickled arguments of :func:`fitted` and writes its answers. It imports nothing else of the
studies, which need the present version.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Fits", "fitted"]


def fitted(task: str, x: Any, y: np.ndarray, test: Any, seed: int) -> dict[str, Any]:
    """Predictions for the test rows, the columns in use, and seconds."""
    import sparsebnn

    kind: Any = getattr(sparsebnn, f"SparseBNN{'Classifier' if task == 'classification' else 'Regressor'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns
        began = time.perf_counter()
        model = kind(random_state=seed, device="cpu").fit(x, y)
        seconds = time.perf_counter() - began
        found = model.predict_proba(test) if task == "classification" else model.predict(test)
    return {
        "predicted": np.asarray(found, dtype=np.float64),
        "used": np.isin(np.array(model.names_).astype(str), model.selected_features_.astype(str)),
        "inclusion": np.asarray(model.inclusion_, dtype=np.float64),
        "seconds": seconds,
    }


class Fits:
    """Fits of the package in ``checkout``; a context manager that ends their process."""

    def __init__(self, checkout: Path) -> None:
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(checkout.resolve() / "src"), str(root)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "studies.estimators.fit_of"]
        self._process: Any = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        head = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        self.commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()

    def __enter__(self) -> Fits:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __call__(self, task: str, x: Any, y: np.ndarray, test: Any, seed: int) -> dict[str, Any]:
        """What :func:`fitted` finds there."""
        pickle.dump((task, x, y, test, seed), self._process.stdin)
        self._process.stdin.flush()
        found: dict[str, Any] = pickle.load(self._process.stdout)
        return found


def _serve() -> None:
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a fit prints must not get among the answers
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(fitted(*job), answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
