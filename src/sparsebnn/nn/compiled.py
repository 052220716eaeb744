"""A lowered network in memory: the structs that the C kernel reads, and a call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from sparsebnn.kernels.compiler import Kernel
from sparsebnn.nn.lowering import ARRAYS, Op, Program

__all__ = ["BLOCK", "compiled_call"]

BLOCK = 16  # SB_BLOCK of the C source
# Fewer products (some 0.1 ms) are not worth waking other threads.
_PRODUCTS = 2_000_000


def _type(name: str) -> type:
    if name in ARRAYS:
        return ctypes.c_void_p
    return ctypes.c_float if name in ("slope", "inverse") else ctypes.c_int32


class _Op(ctypes.Structure):
    _fields_ = tuple((field.name, _type(field.name)) for field in fields(Op))


class _Network(ctypes.Structure):
    _fields_ = (
        ("ops", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("n_ops", "inputs", "outputs", "largest", "arranged", "plane")),
        ("quantized", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("inverse_in", ctypes.c_float),
        ("zero_in", ctypes.c_int32),
    )


def compiled_call(program: Program, kernel: Kernel) -> Callable[[Tensor], Tensor]:
    """A function of contiguous float32 rows on the CPU. Threads may share it: each has its own scratch."""
    run = kernel.run
    assert run is not None
    ops = (_Op * max(1, len(program.ops)))()
    for struct, op in zip(ops, program.ops):
        for field in fields(Op):
            value = getattr(op, field.name)
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                # An array without entries is not NULL either: that says which kind of index there is.
                value = value.ctypes.data if value.size else ctypes.addressof(ops)
            setattr(struct, field.name, value)
    network = _Network(
        ctypes.addressof(ops),
        len(program.ops),
        program.inputs,
        program.outputs,
        **program.sizes(),
        quantized=program.quantized,
        block=BLOCK,
        inverse_in=program.inverse_in,
        zero_in=program.zero_in,
    )
    address, outputs, floats = ctypes.addressof(network), program.outputs, program.floats(BLOCK)
    shape = program.output_shape if len(program.output_shape) > 1 else None
    kept = (program, ops, network)  # what the addresses point to lives as long as the function
    alone = max(BLOCK, _PRODUCTS // max(1, program.products))
    local = threading.local()

    def scratch(threads: int) -> int:
        local.kept = kept
        local.scratch, local.threads = torch.empty(floats * threads), threads
        local.address = local.scratch.data_ptr()
        return local.address

    def call(x: Tensor) -> Tensor:
        rows = len(x)
        y = torch.empty(rows, outputs)
        threads = torch.get_num_threads() if rows > alone else 1
        try:
            own = local.address if local.threads >= threads else scratch(threads)
        except AttributeError:  # the first call of this thread
            own = scratch(threads)
        run(address, x.data_ptr(), rows, y.data_ptr(), own, threads)
        return y if shape is None else y.view(rows, *shape)

    return call
