"""``export``: check everything, make the file, and only then put it in its place."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebnn.checks import check_choice, invalid
from sparsebnn.deploy import c_source, folder
from sparsebnn.deploy.model import Exported, exported
from sparsebnn.io.files import atomic_write

__all__ = ["export"]

FORMATS = ("onnx", "pt2", "c", "hub", "mlflow")
_SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".c": "c"}
# What each format imports, and the extra that brings it.
_NEEDS = {
    "onnx": (("onnx", "onnxscript"), "onnx"),
    "hub": (("huggingface_hub", "safetensors"), "hub"),
    "mlflow": (("mlflow", "safetensors", "pandas"), "mlflow"),
}


def export(
    fitted: Any,
    path: str | Path,
    /,
    *,
    model: str = "average",
    n_draws: int | None = None,
    format: str = "auto",
    likelihood: Any = None,
    example: Any = None,
    seed: int | None = None,
    int8: Any = None,
    overwrite: bool = False,
) -> Path:
    """Write a fitted model as a file that predicts without this library.

    Parameters
    ----------
    fitted : a fitted estimator, a run of :func:`~sparsebnn.train`, or a network with its ``likelihood``.
    path : the file, or the folder for the formats ``"hub"`` and ``"mlflow"``.
    model : ``"average"`` stores draws of the weights and averages their predictions; ``"median"`` stores the
        median probability model, the smallest file.
    n_draws : how many draws are stored, over all replicates together. By default the ``n_draws`` of the
        estimator, or 100; the median model is stored at its posterior means, without draws.
    format : ``"onnx"``, ``"pt2"`` (torch.export), ``"c"`` (C99), ``"hub"`` (a folder in the layout of the
        Hugging Face Hub) or ``"mlflow"``. ``"auto"`` goes by the suffix of ``path``; a path without a suffix
        is a folder for the Hub.
    example : a row of the data, needed for networks that do not start with a dense layer.
    seed : of the draws; by default the estimator's, or 0. With the same seed and number of draws the file
        gives the predictions of the estimator, and those of ``predict(..., draws="weights")``.
    int8 : rows of the data, for C: weights and activations become integers of 8 bits, with scales set by
        these rows. A file of units with many weights is a third smaller, one of units with few weights is
        not; predictions change slightly, so measure them. Rows outside the training range of a regression
        are not widened.
    overwrite : whether an existing file or folder may be replaced.

    An estimator's file takes raw columns: scaling, categories, dates and missing values are part of it.
    Classes come as ``probabilities``, ``entropy`` and ``mutual_information`` (and ``label``), real targets as
    ``mean``, ``std`` and ``epistemic_std``. The guide "From training to production" shows how to read them.

    >>> import sparsebnn, tempfile
    >>> from sparsebnn.likelihoods import Categorical
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     network = sparsebnn.mlp([4, 8, 3])
    ...     path = export(network, f"{folder}/model.pt2", likelihood=Categorical(3), n_draws=10)
    ...     probabilities, *_ = torch.export.load(path).module()(torch.zeros(2, 4))
    >>> probabilities.shape
    torch.Size([2, 3])
    """
    target = Path(path)
    chosen = _format(target, format)
    _check_packages(chosen)
    if target.exists() and not overwrite:
        advice = "Choose another path, or pass overwrite=True."
        raise invalid("path", "export", "new", f"{target}, which exists", advice)
    if chosen in ("hub", "mlflow") and target.is_file():
        raise invalid("path", "export", f"a folder for the format {chosen!r}", f"the file {target}")
    if int8 is not None and chosen != "c":
        raise invalid("int8", "export", "left out for other formats than 'c'", f"rows for {chosen!r}")
    made = exported(fitted, model, n_draws, seed, example, likelihood)
    if chosen == "c":
        _write_c(made, target, None if int8 is None else made.inputs(int8))
    else:
        _WRITERS[chosen](made, target)
    return target


def _format(path: Path, given: str) -> str:
    if given != "auto":
        return check_choice(given, FORMATS, "format", "export")
    if path.suffix == "":
        return "hub"
    if path.suffix not in _SUFFIXES:
        expected = "one that ends in .onnx, .pt2 or .c, or a folder"
        raise invalid("path", "export", expected, str(path), "Or pass the format.")
    return _SUFFIXES[path.suffix]


def _check_packages(chosen: str) -> None:
    modules, extra = _NEEDS.get(chosen, ((), ""))
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"The format {chosen!r} needs {name!r}: pip install 'sparsebnn[{extra}]'.")


def _write_onnx(made: Exported, path: Path) -> None:
    from sparsebnn.deploy.onnx_file import onnx_bytes

    content = onnx_bytes(made)
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def _write_pt2(made: Exported, path: Path) -> None:
    from sparsebnn.deploy.onnx_file import program

    content = io.BytesIO()
    about = {"sparsebnn.json": json.dumps(made.description())}
    torch.export.save(program(made.module, made.example), content, extra_files=about)
    with atomic_write(path) as partial:
        partial.write_bytes(content.getvalue())


def _write_c(made: Exported, path: Path, rows: Tensor | None) -> None:
    header, source = c_source.c_files(made, path.stem, rows)
    for place, text in ((path.with_suffix(".h"), header), (path.with_suffix(".c"), source)):
        with atomic_write(place) as partial:
            partial.write_text(text)


def _write_folder(made: Exported, path: Path, kind: str) -> None:
    """Write next to the target and rename, so that a folder appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        fresh = Path(scratch, "model")
        if kind == "hub":
            folder.hub_model(made).save_pretrained(fresh)
        else:
            folder.save_mlflow(made, fresh)
        if path.exists():
            shutil.move(path, Path(scratch, "old"))
        shutil.move(fresh, path)


_WRITERS = {
    "onnx": _write_onnx,
    "pt2": _write_pt2,
    "hub": lambda made, path: _write_folder(made, path, "hub"),
    "mlflow": lambda made, path: _write_folder(made, path, "mlflow"),
}
