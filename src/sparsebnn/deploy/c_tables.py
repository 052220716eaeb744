"""A network as constants in C: its arrays, its ops, and the record that ``kernels/sparse_network.c`` runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields

import numpy as np

from sparsebnn.checks import invalid
from sparsebnn.nn.lowering import ACTIVATIONS, ARRAYS, BORDERS, KINDS, Op, Program

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
                raise invalid("network", "export", "one of finite weights", f"NaN or infinity in a {name}")


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
