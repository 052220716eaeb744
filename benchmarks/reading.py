"""How many files a reader opens to follow one training step, one ``train`` and one ``fit``.

    python -m benchmarks.reading

Every Python function of the package that is called is counted by its file; ``sparsebnn/checks.py`` is not,
since error messages are not part of the story. For ``fit`` only files under ``estimators/`` are counted.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sparsebnn

_ROOT = Path(sparsebnn.__file__).resolve().parent


def files_called(act: Callable[[], Any]) -> list[str]:
    """The package's files whose functions ``act`` calls, in the order of their first call."""
    seen: dict[str, None] = {}

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(str(_ROOT)) and frame.f_code.co_name != "<module>":
                seen.setdefault(str(Path(name).relative_to(_ROOT)))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return [name for name in seen if name != "checks.py"]


def journeys() -> dict[str, list[str]]:
    """Steps of two replicates of LBBNN-LRT, a whole training, an estimator's fit."""
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    settings = sparsebnn.Settings(epochs=2, batch_size=20)
    network = sparsebnn.mlp([5, 8, 3])

    def train() -> Any:
        return sparsebnn.train(network, (x, y), settings=settings, replicates=2, mode="eager", progress=False)

    run = train()
    run._engine.begin_epoch(0)
    # Other activations than ReLU have no written out gradients: the step goes through passes and layers.
    general = sparsebnn.train(
        sparsebnn.mlp([5, 8, 3], activation="tanh"),
        (x, y),
        settings=settings,
        replicates=2,
        mode="eager",
        progress=False,
    )
    general._engine.begin_epoch(0)
    from sparsebnn import SparseBNNClassifier

    fit = files_called(lambda: SparseBNNClassifier().fit(x.numpy(), y.numpy()))
    return {
        "one training step": files_called(lambda: general._engine.run(1)),
        "one training step, dense network with ReLU": files_called(lambda: run._engine.run(1)),
        "train": files_called(train),
        "fit, estimator files": [name for name in fit if name.startswith("estimators")],
    }


def shipped() -> tuple[int, int]:
    """Files and lines of Python in the package."""
    paths = [path for path in _ROOT.rglob("*.py")]
    return len(paths), sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__.split("\n")[0])
    parser.add_argument("--names", action="store_true", help="list the files")
    given = parser.parse_args(argv)
    files, lines = shipped()
    print(f"shipped: {files} files, {lines} lines")
    for journey, names in journeys().items():
        print(f"{journey}: {len(names)} files")
        if given.names:
            print("".join(f"  {name}\n" for name in names), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
