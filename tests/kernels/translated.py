"""All Triton kernels to machine code for a GPU, without one; runs in a process of its own.

A launch is replaced by a translation with the sizes and tiles it would have: those of the paper's networks,
for one replicate and for ten. What does not fit into the shared memory of an H100 or H200 fails.
``PYTHONPATH=src:tests python tests/kernels/translated.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.test_masked import layer_of, stacked_of
from sparsebnn.kernels import convolution as conv
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn.networks import mlp
from sparsebnn.training.batches import Batch
from sparsebnn.training.captured import Adam, CapturedDense
from sparsebnn.training.objective import Objective, Replicates

_SHARED = 232_448
CPU = torch.device("cpu")
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.float64: "*fp64",
}
# channels, image, filters
_LAYERS = [(1, 28, 32), (32, 12, 48)]
translated: list[str] = []


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _TYPES[value.dtype]
    return "i32" if abs(value) < 2**31 else "i64"


def translate(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """In the place of a launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    given = dict(zip(kernel.arg_names, args)) | {n: options.pop(n) for n in kernel.arg_names if n in options}
    fixed = {p.name: given[p.name] for p in kernel.params if p.is_constexpr}
    signature = {n: "constexpr" if n in fixed else _type(value) for n, value in given.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.metadata.shared <= _SHARED, (kernel.__name__, fixed)
    assert len(made.asm["cubin"]) > 1000
    translated.append(f"{kernel.__module__}.{kernel.__name__}")


def convolutions(k: int, pair: bool) -> None:
    from sparsebnn.kernels import triton_convolution

    for channels, size, filters in _LAYERS:
        x, w = torch.empty(k, 100, channels, size, size), torch.empty(k, filters, channels, 5, 5)
        shape, last = conv._shape(x, w, ([1, 1], [0, 0], [1, 1])), channels >= 16
        bias, grad = torch.empty(k, filters), torch.empty(k, 100, filters, shape.oh, shape.ow)
        triton_convolution.forward(x, w, w, bias, bias, shape, pair, last)
        triton_convolution.weight_grad(grad, grad, x, shape, 8, pair, True, last)
        triton_convolution.input_grad(grad, grad, x, w, w, shape, pair)


def flows(k: int) -> None:
    from sparsebnn.kernels import triton_contraction, triton_masked

    for size in ((784, 250, False), (250, 250, True), (250, 1568, True)):
        layer = layer_of(*size)
        x, weight, bias, direction = (t.float()[:1].expand(k, *t.shape[1:]) for t in stacked_of([layer]))
        y, _ = triton_masked.forward(x, weight, bias, *layer.fold, 0.001)
        triton_masked.backward(direction.unsqueeze(1), y, weight, *layer.fold, 0.001, 16, x.shape[-1])
    triton_contraction.column_sums(torch.empty(k, 400, 784), torch.empty(k, 400), 16)


def dense(k: int, family: str) -> None:
    """Three dense layers of the paper's sizes."""
    from sparsebnn.kernels import triton_batch

    network = mlp([784, 400, 600, 10], family=family)
    replicates = Replicates(Objective(network, Categorical(10), 60_000), range(k), CPU)
    state, x = replicates.tensors(), torch.zeros(k, 100, 784)
    replicates.measure(x[0])
    for kind in ("first", "second"):
        state[kind] = state["trained"]
    batch = Batch(x, torch.zeros(k, 100, dtype=torch.int64), torch.ones(k, 100), torch.tensor(100.0))
    noise = torch.zeros(k, replicates.size.normal), torch.empty(k, 0)
    one = torch.ones(1, k)
    captured = CapturedDense.of(replicates.objective)
    begun = captured.begin(state, lambda: noise, 100)
    (terms, by_layer), back = captured.forward(state, batch, x, one[0], begun)
    back(None, None)
    back(Adam(one, one[0], one[0] > 0, dict.fromkeys(state["trained"], 0)), None)
    many = torch.zeros(k, 60_000, dtype=torch.int64)
    loop = {"order": many, "masks": torch.ones(600, 100), "position": many[0, 0], "beta": one[0]}
    loop |= {"totals": one.double(), "kl_by_layer": one, "alive": one > 0, "stopped_at": many, "step": many}
    pixels = torch.zeros(60_000, 784, dtype=torch.uint8)
    triton_batch.gather({"x": pixels, "y": many[0]}, loop, 60_000)
    triton_batch.account(loop, terms, by_layer, one[0])
    triton_batch.corrected(loop | {"rates": one}, (0.9, 0.999))


def main() -> None:
    from triton.runtime.jit import JITFunction

    from sparsebnn.kernels import triton_adam, triton_local, triton_noise, triton_spike_slab

    JITFunction.run = translate
    torch.set_float32_matmul_precision("high")
    for replicates in (1, 10):
        for both in (False, True):
            convolutions(replicates, both)
        flows(replicates)
        for family in ("spike_slab", "flow", "mnf"):
            dense(replicates, family)
        w, one, prior = torch.empty(replicates, 400, 784), torch.empty(replicates), torch.empty(replicates, 3)
        for logit in (w, torch.empty(replicates, 0)):
            triton_spike_slab.forward(w, w, logit, prior)
            triton_spike_slab.backward(w, w, one, w, w, logit, prior)
        triton_adam.update(w, w, w, w, one, one, one > 0, (0.9, 0.999), 1e-8)
    seeds = torch.zeros(2, dtype=torch.int64)
    for normal in (False, True):
        triton_noise.block(seeds, seeds, 1000, normal)
    for shape in ((128, 64, 32, 32), (128, 512, 4, 4)):
        images = torch.empty(shape, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
        triton_local.squares(images)
        triton_local.joined(images, images, images)
        triton_local.sampled(images, images.float(), torch.empty(shape))
        triton_local.to_variance(images, images.float(), torch.empty(shape))
    print(f"{len(translated)} translations of {len(set(translated))} kernels")


if __name__ == "__main__":
    main()
