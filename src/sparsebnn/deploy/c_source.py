"""C99: one header and one source file without dependencies or allocation, weights as static sparse arrays.

The networks run in the kernel of :mod:`sparsebnn.nn.sparse`, which is copied into the source. The caller
passes the scratch memory, so the functions can run in several threads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sparsebnn.checks import InvalidInput, invalid
from sparsebnn.deploy.c_head import head_lines, n_targets, number
from sparsebnn.deploy.c_tables import check_finite, tables
from sparsebnn.deploy.model import Exported
from sparsebnn.deploy.table import FARTHEST, has_range, levels
from sparsebnn.estimators.columns import Column
from sparsebnn.io.cells import UNITS
from sparsebnn.kernels.compiler import SOURCE
from sparsebnn.nn.compaction import compact
from sparsebnn.nn.lowering import Program, lower
from sparsebnn.nn.networks import InputSkip
from sparsebnn.nn.quantization import quantize

__all__ = ["c_files"]

_LEVEL_OF = """\
/* The place of a level, -1 for an unknown one, -2 for a missing one. */
static int level_of(const char *value, const char *const *known, int count) {
  if (value == NULL || value[0] == 0) return -2;
  for (int i = 0; i < count; ++i)
    if (strcmp(value, known[i]) == 0) return i;
  return -1;
}
"""
_SCALED = """\
static float scaled(double value, double centre, double scale) {
  return isnan(value) ? 0.0f : (float)((value - centre) / scale);
}
"""
_FARTHER = """\
/* The same without the limits of the training range. */
static float farther(double value, double centre, double scale) {
  const double at = (value - centre) / scale;
  return isnan(at) ? 0.0f : (float)(at < -FARTHEST ? -FARTHEST : at > FARTHEST ? FARTHEST : at);
}
"""
_KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int
    long register restrict return short signed sizeof static struct switch typedef union unsigned void
    volatile while and asm bool catch class delete false friend namespace new not operator or private
    protected public template this throw true try typename using virtual xor""".split()  # noqa: SIM905
)


def c_files(exported: Exported, name: str, rows: Tensor | None = None) -> tuple[str, str]:
    """``(header, source)``; ``name`` starts every public name. With ``rows`` the weights are int8."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _KEYWORDS:
        expected = "a C identifier, such as model.c"
        raise invalid("path", "export", expected, f"{name}.c", "Rename the file.")
    if not isinstance(exported.predictor.template, nn.Sequential | InputSkip):
        got, expected = type(exported.predictor.template).__name__, "a Sequential or InputSkip for C"
        raise invalid("model", "export", expected, got, "ONNX and pt2 take any module.")
    shape = _row_shape(exported)
    programs = []
    for network in exported.predictor.networks():
        with contextlib.suppress(InvalidInput):  # a chain that cannot be compacted may still be written
            network = compact(network).network
        programs.append(lower(network, shape) if rows is None else quantize(network, rows).program)
        check_finite(programs[-1])
    return _header(exported, name, programs), _source(exported, name, programs)


def _widens(exported: Exported, programs: Sequence[Program]) -> bool:
    """Whether rows outside the training range are widened; integers cannot tell how far outside they are."""
    ranged = exported.columns is not None and any(map(has_range, exported.columns))
    return ranged and bool(exported.predictor.probes) and not programs[0].quantized


def _row_shape(exported: Exported) -> tuple[int, ...]:
    if exported.columns is None:
        return tuple(exported.example.shape[1:])
    with torch.no_grad():
        return tuple(exported.module.inputs(exported.example).shape[1:])  # type: ignore[operator]


def _scratch(exported: Exported, programs: Sequence[Program]) -> int:
    """Floats: the inputs (with and without limits), the outputs, and what the kernel needs."""
    inputs = programs[0].inputs * (2 if _widens(exported, programs) else 1)
    return inputs + programs[0].outputs + max(program.floats(1) for program in programs)


# -- names ----------------------------------------------------------------------------------------------


def _identifiers(columns: Sequence[Column]) -> list[str]:
    """A field of the row for every column; the comment next to it has the column's name."""
    found: list[str] = []
    for column in columns:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", column.name) or "column"
        plain = f"c_{plain}" if plain[0].isdigit() or plain[0] == "_" else plain
        plain = f"{plain}_" if plain in _KEYWORDS else plain
        taken, count = plain, 1
        while taken in found:
            count += 1
            taken = f"{plain}_{count}"
        found.append(taken)
    return found


def _string(text: str) -> str:
    """A C string; bytes outside of plain ASCII in octal."""
    shown = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{shown}"'


def _comment(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("*/", "* /").replace("\\", "/").replace("??", "? ?")


# -- header ---------------------------------------------------------------------------------------------


def _result(exported: Exported, outputs: int) -> list[str]:
    if exported.predictor.head.kind == "gaussian":
        return [
            f"  double mean[{outputs}];",
            f"  double std[{outputs}];",
            f"  double epistemic_std[{outputs}];",
        ]
    return [
        "  int label; /* the most probable class, from 0 */",
        f"  double probabilities[{outputs}];",
        "  double entropy; /* in nats */",
        "  double mutual_information;",
    ]


def _row(exported: Exported, name: str) -> tuple[list[str], str]:
    """The type of a row, and the parameter of the function that takes one."""
    if exported.columns is None or not exported.named:
        count = int(np.prod(exported.example.shape[1:]))
        kind = "float" if exported.columns is None else "double"
        return [], f"const {kind} x[{count}]"
    fields = []
    for field, column in zip(_identifiers(exported.columns), exported.columns):
        if column.kind == "dropped":
            continue
        if column.kind == "category":
            fields.append(f'  const char *{field}; /* {_comment(column.name)}; NULL or "" is missing */')
        else:
            unit = "days since 1970-01-01" if column.kind == "date" else UNITS.get(column.form)
            what = f", {unit}" if unit else ""
            fields.append(f"  double {field}; /* {_comment(column.name)}{what}; NaN is missing */")
    fields = fields or ["  double unused;"]
    return ["typedef struct {", *fields, f"}} {name}_row;", ""], f"const {name}_row *row"


def _header(exported: Exported, name: str, programs: Sequence[Program]) -> str:
    row, parameter = _row(exported, name)
    guard = f"{name.upper()}_H"
    classes = []
    if exported.classes is not None:
        classes = [f"extern const char *const {name}_classes[{len(exported.classes)}];"]
    lines = [
        "/* A sparse Bayesian neural network, exported by sparsebnn. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {name.upper()}_SCRATCH {_scratch(exported, programs)} /* floats */",
        "",
        *row,
        "typedef struct {",
        *_result(exported, n_targets(exported)),
        f"}} {name}_result;",
        "",
        *classes,
        f"/* Predicts one row. scratch must have room for {name.upper()}_SCRATCH floats. */",
        f"void {name}_predict({parameter}, float *scratch, {name}_result *result);",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {guard} */",
    ]
    return "\n".join(lines) + "\n"


# -- source ---------------------------------------------------------------------------------------------


def _source(exported: Exported, name: str, programs: Sequence[Program]) -> str:
    _, parameter = _row(exported, name)
    columns = exported.columns or ()
    helpers = [_SCALED] if any(column.kind != "dropped" for column in columns) else []
    helpers += [_LEVEL_OF] if any(column.kind == "category" for column in columns) else []
    classes = []
    if exported.classes is not None:
        listed = ", ".join(_string(str(label)) for label in exported.classes)
        classes = [f"const char *const {name}_classes[{len(exported.classes)}] = {{{listed}}};", ""]
    widens = _widens(exported, programs)
    if widens:
        helpers.append(_FARTHER.replace("FARTHEST", number(FARTHEST)))
    count = len(programs)
    networks = ", ".join(f"&{name}_{d}_network" for d in range(count))
    lines = [
        f'#include "{name}.h"',
        "",
        "#include <math.h>",
        "#include <string.h>",
        "",
        "#define SB_API static",
        *([] if programs[0].quantized else ["#define SB_FLOAT_ONLY"]),
        SOURCE.read_text(encoding="utf-8"),
        *[tables(program, f"{name}_{d}", 1) for d, program in enumerate(programs)],
        f"static const sb_network *const networks[{count}] = {{{networks}}};",
        "",
        *classes,
        *helpers,
        f"void {name}_predict({parameter}, float *scratch, {name}_result *result) {{",
        f"  float *const out = scratch + {programs[0].inputs}, *const work = out + {programs[0].outputs};",
        *([f"  float *const wide = scratch + {_scratch(exported, programs) - programs[0].inputs};"] * widens),
        *_encoding(exported),
        *(_free_inputs(exported, programs[0].inputs) if widens else []),
        *head_lines(exported, widens),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _encoding(exported: Exported) -> list[str]:
    """Statements that fill the inputs of the network."""
    if exported.columns is None:
        count = int(np.prod(exported.example.shape[1:]))
        return [f"  for (int i = 0; i < {count}; ++i) scratch[i] = x[i];"]
    lines: list[str] = []
    place = 0
    fields = _identifiers(exported.columns)
    for at, (field, column) in enumerate(zip(fields, exported.columns)):
        if column.kind == "dropped":
            continue
        value = f"row->{field}" if exported.named else f"x[{at}]"
        scales = [f"{number(c)}, {number(s)}" for c, s in zip(column.centre, column.scale)]
        lines.append(f"  {{ /* {_comment(column.name)} */")
        if column.kind == "category":
            known = levels(column)
            lines.append(
                f"    static const char *const known[{len(known)}] = {{{', '.join(map(_string, known))}}};"
            )
            lines.append(f"    const int code = level_of({value}, known, {len(known)});")
            gone = "code == -2 || code == -1" if column.reference is not None else "code == -2"
            terms = [f"({gone}) ? NAN : (code == {i} ? 1.0 : 0.0)" for i in range(len(column.levels))]
            if column.codes:
                for i, own in enumerate(zip(*column.codes)):
                    values = ", ".join(number(value) for value in own)
                    lines.append(f"    static const double codes{i}[{len(own)}] = {{{values}}};")
                terms = [f"code < 0 ? NAN : codes{i}[code]" for i in range(len(column.codes[0]))]
            gap = "code == -2"
        else:
            lines.append(f"    const double raw = {value};")
            term = "raw"
            if column.ends:
                low, high = map(number, column.ends)
                term = f"raw < {low} ? {low} : raw > {high} ? {high} : raw"
            terms = [term]
            if column.kind == "date":
                turn = "raw * (6.283185307179586 / 365.2425)"
                terms += [f"sin({turn})", f"cos({turn})"]
            gap = "isnan(raw)"
        if column.gaps:
            terms.append(f"({gap}) ? 1.0 : 0.0")
        for term, scale in zip(terms, scales):
            lines.append(f"    scratch[{place}] = scaled({term}, {scale});")
            place += 1
        lines.append("  }")
    if place == 0:
        lines = ["  (void)row;" if exported.named else "  (void)x;", "  scratch[0] = 0.0f;"]
    return lines


def _free_inputs(exported: Exported, inputs: int) -> list[str]:
    """Statements that fill ``wide``: the inputs without the limits of the training range."""
    assert exported.columns is not None
    lines = ["  int outside = 0;", f"  memcpy(wide, scratch, {inputs} * sizeof(float));"]
    place = 0
    for at, (field, column) in enumerate(zip(_identifiers(exported.columns), exported.columns)):
        if has_range(column):
            value = f"row->{field}" if exported.named else f"x[{at}]"
            scale = f"{number(column.centre[0])}, {number(column.scale[0])}"
            lines.append(f"  wide[{place}] = farther({value}, {scale});")
            lines.append(f"  outside |= wide[{place}] != scratch[{place}];")
        place += len(column.centre)
    return lines
