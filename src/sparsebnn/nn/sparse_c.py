"""A network as one C99 header and one source file: its weights as constants, and the kernel that runs them.

The files need no library and no allocation, and compile without warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np
from torch import nn

from sparsebnn.checks import check_choice, invalid
from sparsebnn.kernels.compiler import SOURCE
from sparsebnn.nn.compiled import BLOCK
from sparsebnn.nn.lowering import ACTIVATIONS, ARRAYS, BORDERS, KINDS, Op, Program, lower

__all__ = ["c_source", "check_finite", "tables"]

_TYPES = {
    "float32": "float",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "int8": "int8_t",
    "int32": "int32_t",
}
_ENUMS = {"kind": KINDS, "activation": ACTIVATIONS, "border": BORDERS}
_WIDTH = 100


def _number(value: float | int) -> str:
    """A constant that reads back as the same number.

    >>> _number(np.float32(0.1)), _number(np.float32(2.0)), _number(np.int8(-3))
    ('0.100000001f', '2.0f', '-3')
    """
    if not isinstance(value, np.floating | float):
        return str(int(value))
    text = f"{float(np.float32(value)):.9g}"
    return (text if re.search(r"[.e]", text) else f"{text}.0") + "f"


def _lines(words: Iterable[str]) -> str:
    lines, line = [], "   "
    for word in words:
        if len(line) + len(word) + 2 > _WIDTH:
            lines.append(line)
            line = "   "
        line += f" {word},"
    return "\n".join([*lines, line])


def _array(name: str, array: np.ndarray) -> str:
    values = array.reshape(-1) if array.size else np.zeros(1, array.dtype)  # C has no empty arrays
    return f"static const {_TYPES[array.dtype.name]} {name}[] = {{\n{_lines(map(_number, values))}\n}};\n"


def _entry(op: Op, arrays: dict[str, str]) -> str:
    words = []
    for field in fields(Op):
        value = getattr(op, field.name)
        if field.name in ARRAYS:
            text = arrays.get(field.name, "NULL")
        elif field.name in _ENUMS:
            text = f"SB_{_ENUMS[field.name][value].upper()}"
        else:
            text = _number(value)
        words.append(f".{field.name} = {text}")
    return f"    {{\n{_lines(words)}\n    }},\n"


def check_finite(program: Program) -> None:
    """Refuse weights that have no constant in C."""
    for op in program.ops:
        for name in ("value", "bias"):
            array = getattr(op, name)
            if array is not None and not np.isfinite(array).all():
                raise invalid("network", "c_source", "one of finite weights", f"NaN or infinity in a {name}")


def c_source(
    network: nn.Sequential | Program, name: str, input_shape: Sequence[int] | None = None, block: int = 1
) -> tuple[str, str]:
    """Header and source of a network of ordinary layers, such as ``compact(…).network``.

    They define ``void NAME_run(const float *x, size_t rows, float *y, float *scratch)``, which computes rows
    of ``NAME_OUTPUTS`` numbers from rows of ``NAME_INPUTS``; ``scratch`` is the caller's, ``NAME_SCRATCH``
    floats. ``block=16`` evaluates rows in blocks: faster for batches, at 16 times the scratch. A network of
    convolutions needs the ``input_shape`` of a row. The source includes ``"NAME.h"``.

    >>> header, source = c_source(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "tiny")
    >>> [line for line in header.splitlines() if line.startswith("#define TINY_")]
    ['#define TINY_H', '#define TINY_INPUTS 3', '#define TINY_OUTPUTS 2', '#define TINY_SCRATCH 6']
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise invalid("name", "c_source", "a name in C", repr(name))
    check_choice(str(block), ("1", str(BLOCK)), "block", "c_source")
    if isinstance(network, Program):
        program = network
    else:
        if input_shape is None:
            layer = next(iter(network), None)
            if not isinstance(layer, nn.Linear):
                advice = "Pass the shape of a row, such as (1, 28, 28)."
                raise invalid("input_shape", "c_source", "given unless a Linear comes first", None, advice)
            input_shape = (layer.in_features,)
        program = lower(network, input_shape)
    check_finite(program)
    return _header(program, name, block), _body(program, name, block)


def _header(program: Program, name: str, block: int) -> str:
    upper = name.upper()
    return f"""/* Written by sparsebnn. */
#ifndef {upper}_H
#define {upper}_H

#include <stddef.h>

#define {upper}_INPUTS {program.inputs}
#define {upper}_OUTPUTS {program.outputs}
#define {upper}_SCRATCH {max(1, program.floats(block))}

#ifdef __cplusplus
extern "C" {{
#endif

/* y (rows x {upper}_OUTPUTS) of x (rows x {upper}_INPUTS); scratch holds {upper}_SCRATCH floats. */
void {name}_run(const float *x, size_t rows, float *y, float *scratch);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _body(program: Program, name: str, block: int) -> str:
    return f"""/* Written by sparsebnn. */
#include "{name}.h"

#define SB_API static
{"" if program.quantized else "#define SB_FLOAT_ONLY"}
{SOURCE.read_text(encoding="utf-8")}
/* ---- {name} {"-" * (92 - len(name))} */

{tables(program, name, block)}
void {name}_run(const float *x, size_t rows, float *y, float *scratch)
{{
    sb_run(&{name}_network, x, rows, y, scratch, 1);
}}
"""


def tables(program: Program, name: str, block: int) -> str:
    """The network's arrays and ops, and the constant ``NAME_network`` that the kernel runs."""
    arrays, entries = [], []
    for place, op in enumerate(program.ops):
        names = {}
        for kind in ARRAYS:
            array = getattr(op, kind)
            if array is not None:
                names[kind] = f"{name}_{kind}_{place}"
                arrays.append(_array(names[kind], array))
        entries.append(_entry(op, names))
    sizes = ", ".join(f".{key} = {value}" for key, value in program.sizes().items())
    shape = f".n_ops = {len(program.ops)}, .inputs = {program.inputs}, .outputs = {program.outputs}"
    levels = f".inverse_in = {_number(float(program.inverse_in))}, .zero_in = {program.zero_in}"
    return f"""{"".join(arrays)}
static const sb_op {name}_ops[] = {{
{"".join(entries)}}};

static const sb_network {name}_network = {{
    .ops = {name}_ops, {shape},
    {sizes},
    .quantized = {int(program.quantized)}, .block = {block}, {levels}
}};
"""
