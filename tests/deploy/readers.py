"""Read exported files as their users would, without the library."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

EPOCH = np.datetime64("1970-01-01")


def days(values: Any) -> np.ndarray:
    return (pd.to_datetime(pd.Series(values)).to_numpy() - EPOCH) / np.timedelta64(1, "D")


def by_onnx(path: Path, X: Any) -> dict[str, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    outputs = [each.name for each in session.get_outputs()]
    feed: dict[str, np.ndarray] = {}
    for each in session.get_inputs():
        if not isinstance(X, pd.DataFrame):
            feed[each.name] = X
        elif each.type == "tensor(string)":
            feed[each.name] = np.array(
                [[v if isinstance(v, str) else ""] for v in X[each.name]], dtype=object
            )
        elif X[each.name].dtype.kind == "M":
            feed[each.name] = days(X[each.name])[:, None]
        else:
            feed[each.name] = X[each.name].to_numpy(np.float64)[:, None]
    return dict(zip(outputs, session.run(outputs, feed)))


def by_pt2(path: Path, X: Any) -> dict[str, np.ndarray]:
    import torch

    extra = {"sparsebnn.json": ""}
    program = torch.export.load(path, extra_files=extra)
    about = json.loads(extra["sparsebnn.json"])
    if isinstance(X, pd.DataFrame):
        raw = np.zeros((len(X), len(about["columns"])))
        for i, column in enumerate(about["columns"]):
            if column["kind"] == "category":
                codes = {level: float(code) for code, level in enumerate(column["levels"])}
                raw[:, i] = [codes.get(v, -1.0) if isinstance(v, str) else np.nan for v in X[column["name"]]]
            elif column["kind"] == "date":
                raw[:, i] = days(X[column["name"]])
            elif column["kind"] == "number":
                raw[:, i] = X[column["name"]]
        X = raw
    with torch.no_grad():
        found = program.module()(torch.as_tensor(X))
    return dict(zip(about["outputs"], (each.numpy() for each in found)))


_MAIN = """
#include <math.h>
#include <stdio.h>
#include "{name}.h"
static float scratch[{upper}_SCRATCH];
{rows}
int main(void) {{
  {name}_result result;
  for (int i = 0; i < {count}; ++i) {{
    {name}_predict({argument}, scratch, &result);
    const double *first = {first};
    for (int j = 0; j < {width}; ++j) printf("%.17g ", first[j]);
    printf("\\n");
  }}
  return 0;
}}
"""
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return '"' + "".join(f"\\{byte:03o}" for byte in value.encode()) + '"'
    if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return "NAN"
    return repr(float(value))


@functools.cache
def can_sanitize(compiler: str) -> bool:
    """Whether a compiler is installed with its sanitizers, which are a separate package for clang."""
    if shutil.which(compiler) is None:
        return False
    command = [compiler, *SANITIZED, "-x", "c", "-", "-o", "/dev/null"]
    return subprocess.run(command, input=b"int main(void) { return 0; }", capture_output=True).returncode == 0


def by_c(path: Path, X: Any, columns: Any, compiler: str, flags: tuple[str, ...] = SANITIZED) -> np.ndarray:
    """All numbers of every result, compiled strictly and, unless told otherwise, with sanitizers."""
    name, header = path.stem, path.with_suffix(".h").read_text()
    if isinstance(X, pd.DataFrame):
        listed = []
        for _, row in X.iterrows():
            cells = []
            for column in columns:
                value = row[column.name]
                if column.kind == "date":
                    value = float(days([value])[0])
                if column.kind == "category" and not isinstance(value, str):
                    cells.append("NULL")
                elif column.kind != "dropped":
                    cells.append(_literal(value))
            listed.append("{" + ", ".join(cells) + "}")
        rows = f"static const {name}_row rows[] = {{\n" + ",\n".join(listed) + "};"
        argument = "&rows[i]"
    else:
        kind = "double" if columns is not None else "float"
        flat = np.asarray(X, np.float64).reshape(len(X), -1)
        listed = ["{" + ", ".join(_literal(float(v)) for v in row) + "}" for row in flat]
        rows = f"static const {kind} rows[][{flat.shape[1]}] = {{" + ",\n".join(listed) + "};"
        argument = "rows[i]"
    gaussian = "epistemic_std" in header
    size = int(header.split("mean[" if gaussian else "probabilities[")[1].split("]")[0])
    text = _MAIN.format(
        name=name,
        upper=name.upper(),
        rows=rows,
        count=len(X),
        argument=argument,
        first="result.mean" if gaussian else "result.probabilities",
        width=3 * size if gaussian else size,
    )
    main = path.with_name(f"main_{name}.c")
    main.write_text(text)
    program = path.with_name(f"{name}_{compiler}")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *strict, *flags, "-c", path, "-o", path.with_suffix(".o")], check=True)
    subprocess.run(
        [compiler, "-std=c99", *flags, main, path.with_suffix(".o"), "-o", program, "-lm"], check=True
    )
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert not done.stderr
    return np.array([[float(v) for v in line.split()] for line in done.stdout.splitlines()])
