"""ONNX: torch exports the tensor program; string columns and class labels are added around it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsebnn.checks import invalid
from sparsebnn.deploy.model import Exported
from sparsebnn.deploy.table import levels

__all__ = ["onnx_bytes", "program"]

_OPSET = 18
_RAW = "sparsebnn_raw"
_OUT = "sparsebnn_out_"
_TABLE = "sparsebnn_table"


def program(module: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    """The module as a graph for any number of rows."""
    rows = torch.export.Dim("rows", min=1)
    # With one row, torch would take the number of rows for a constant.
    several = example.repeat(3, *[1] * (example.dim() - 1))
    with _quiet():
        return torch.export.export(module.eval(), (several,), dynamic_shapes=({0: rows},), strict=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's remarks on its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def onnx_bytes(exported: Exported) -> bytes:
    """An ONNX file; its metadata has the description under ``sparsebnn``."""
    import onnx
    from onnx import compose, helper

    outputs = exported.predictor.head.names
    name = "x" if exported.columns is None else _RAW
    with _quiet():
        made = torch.onnx.export(
            program(exported.module, exported.example),
            (),
            dynamo=True,
            input_names=[name],
            output_names=[f"{_OUT}{name}" for name in outputs],
            opset_version=_OPSET,
            verbose=False,
        )
    assert made is not None
    core = made.model_proto
    del core.metadata_props[:]
    every = list(_graphs(core.graph))
    used = {name for graph in every for node in graph.node for name in node.input}
    for graph in every:
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        kept = [each for each in graph.initializer if each.name in used]
        del graph.initializer[:]  # onnxruntime warns of those that the exporter left over
        graph.initializer.extend(kept)
    final = _output_names(exported, ("label", *outputs))
    # The exporter has tensors of the names of outputs.
    inner = {final[output]: f"{output}_inner" for output in outputs}
    inner |= {_OUT + output: final[output] for output in outputs}
    _rename(core.graph, lambda name: inner.get(name, name))
    if exported.columns is not None and exported.named:
        front = _front(exported, core.ir_version, core.opset_import)
        # Names inside the program must not be those of the columns.
        known = {_RAW, *final.values()}
        _rename(core.graph, lambda name: name if name in known else f"net_{name}")
        core = compose.merge_models(front, core, io_map=[(_TABLE, _RAW)])
    elif exported.columns is not None:
        _rename(core.graph, lambda name: "x" if name == _RAW else name)
    if exported.classes is not None:
        _add_label(core, exported.classes, final)
    core.producer_name = "sparsebnn"
    entry = core.metadata_props.add()
    known_outputs = {"outputs": [final[output] for output in outputs]}
    entry.key, entry.value = "sparsebnn", json.dumps(exported.description() | known_outputs)
    for part in core.graph.input:
        _name_rows(part)
    for part in core.graph.output:
        _name_rows(part)
    _check_opsets(core, helper)
    onnx.checker.check_model(core)
    return core.SerializeToString()


def _output_names(exported: Exported, outputs: Sequence[str]) -> dict[str, str]:
    """The names of outputs: ``predicted_…`` where a column has that name."""
    columns = {column.name for column in exported.columns or ()} if exported.named else set()
    found = {}
    for output in outputs:
        name = output
        while name in columns:
            name = f"predicted_{name}"
        found[output] = name
    return found


def _name_rows(part: Any) -> None:
    part.type.tensor_type.shape.dim[0].ClearField("dim_value")
    part.type.tensor_type.shape.dim[0].dim_param = "rows"


def _check_opsets(model: Any, helper: Any) -> None:
    """Name the operators for machine learning, once."""
    domains = {entry.domain for entry in model.opset_import}
    if "ai.onnx.ml" not in domains and any(node.domain == "ai.onnx.ml" for node in model.graph.node):
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


def _front(exported: Exported, ir_version: int, opsets: Any) -> Any:
    """The graph from named columns to one table of numbers; categories are strings, "" is missing."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, inputs, parts = [], [], []
    shape: list[str | int | None] = ["rows", 1]
    assert exported.columns is not None
    for place, column in enumerate(exported.columns):
        part = f"sparsebnn_column_{place}"
        parts.append(part)
        if column.kind == "dropped":
            continue
        if column.kind == "category":
            known = levels(column)
            inputs.append(helper.make_tensor_value_info(column.name, TensorProto.STRING, shape))
            nodes.append(
                helper.make_node(
                    "LabelEncoder",
                    [column.name],
                    [f"{part}_code"],
                    domain="ai.onnx.ml",
                    keys_strings=[*known, ""],
                    values_floats=[*map(float, range(len(known))), float("nan")],
                    default_float=-1.0,
                )
            )
            nodes.append(helper.make_node("Cast", [f"{part}_code"], [part], to=TensorProto.DOUBLE))
        else:
            inputs.append(helper.make_tensor_value_info(column.name, TensorProto.DOUBLE, shape))
            nodes.append(helper.make_node("Identity", [column.name], [part]))
    kept = [part for part, column in zip(parts, exported.columns) if column.kind != "dropped"]
    blank = [part for part, column in zip(parts, exported.columns) if column.kind == "dropped"]
    constants = []
    if not kept:
        advice = "Export it as .c or .pt2, or fit it to other columns."
        raise invalid("model", "export", "one that uses a column", "one that left all columns out", advice)
    if blank:
        # Columns that training left out: the program skips them, whatever they hold.
        constants.append(numpy_helper.from_array(np.zeros((), np.float64), "sparsebnn_zero"))
        nodes += [helper.make_node("Mul", [kept[0], "sparsebnn_zero"], [part]) for part in blank]
    nodes.append(helper.make_node("Concat", parts, [_TABLE], axis=1))
    table = helper.make_tensor_value_info(_TABLE, TensorProto.DOUBLE, ["rows", len(parts)])
    graph = helper.make_graph(nodes, "columns", inputs, [table], constants)
    return helper.make_model(
        graph, opset_imports=[*opsets, helper.make_opsetid("ai.onnx.ml", 3)], ir_version=ir_version
    )


def _add_label(model: Any, classes: tuple[Any, ...], names: dict[str, str]) -> None:
    """The output ``label``: the most probable class, as a string, an integer, or true or false."""
    from onnx import TensorProto, helper

    whole = all(isinstance(label, int) for label in classes)
    binary = all(isinstance(label, bool) for label in classes)
    kind = TensorProto.BOOL if binary else TensorProto.INT64 if whole else TensorProto.STRING
    values: dict[str, Any] = (
        {"values_int64s": list(map(int, classes))} if whole else {"values_strings": list(map(str, classes))}
    )
    model.graph.node.extend(
        [
            helper.make_node("ArgMax", [names["probabilities"]], ["sparsebnn_index"], axis=1, keepdims=0),
            helper.make_node(
                "LabelEncoder",
                ["sparsebnn_index"],
                ["sparsebnn_label"],
                domain="ai.onnx.ml",
                keys_int64s=list(range(len(classes))),
                **values,
            ),
            helper.make_node("Cast", ["sparsebnn_label"], [names["label"]], to=kind),
        ]
    )
    model.graph.output.insert(0, helper.make_tensor_value_info(names["label"], kind, ["rows"]))


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and the branches of its conditions."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _rename(whole: Any, named: Callable[[str], str]) -> None:
    """Rename tensors wherever they occur; "" is an input that is left out."""
    for graph in _graphs(whole):
        for part in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            part.name = named(part.name)
        for node in graph.node:
            node.input[:] = [named(name) if name else name for name in node.input]
            node.output[:] = [named(name) if name else name for name in node.output]
