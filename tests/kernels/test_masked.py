"""kernels/masked.py: the stacked product against the layer it speeds up, and Triton against its twin."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, grad_and_value, vmap

from sparsebnn.kernels import masked
from sparsebnn.kernels.masked import masked_network
from sparsebnn.posteriors.flows import AutoregressiveStep
from sparsebnn.posteriors.masked import FoldedLinear

SIZES = [(1, 1, False), (5, 8, False), (8, 5, True), (40, 33, False), (33, 81, True), (200, 90, True)]


def layer_of(inputs, outputs, strict, dtype=torch.float64):
    generator = torch.Generator().manual_seed(inputs + outputs)
    ins = torch.randint(0, 20, (inputs,), generator=generator)
    outs = torch.randint(0, 20, (outputs,), generator=generator)
    return FoldedLinear(ins, outs, strict).to(dtype)


def stacked_of(layers, k=3):
    """K random inputs and parameters, in the order of :func:`masked_network`, and a direction."""
    generator = torch.Generator().manual_seed(k)
    shapes = [(layers[0].inputs,), *(p.shape for layer in layers for p in (layer.weight, layer.bias))]
    shapes.append((layers[-1].outputs,))
    return [torch.randn(k, *s, generator=generator, dtype=torch.float64) for s in shapes]


def test_product_and_gradients_are_those_of_the_layers():
    """Under vmap and grad, replicate by replicate, at 1e-12; step by step as an oracle has it."""
    step = AutoregressiveStep(9, hidden=(13, 6), seed=3, folded=True)
    cases = [[layer_of(*size)] for size in SIZES] + [list(step.double().layers)]
    for layers in cases:
        *tensors, direction = stacked_of(layers)
        folds = [layer.fold for layer in layers]

        def by_kernel(direction, x, *parameters, folds=folds):
            pairs = list(zip(parameters[::2], parameters[1::2]))
            return (masked_network(x, pairs, folds, 0.3) * direction).sum()

        def by_layers(direction, x, *parameters, layers=layers):
            for i, layer in enumerate(layers):
                named = {"weight": parameters[2 * i], "bias": parameters[2 * i + 1]}
                x = functional_call(layer, named, (x if i == 0 else F.leaky_relu(x, 0.3),))
            return (x * direction).sum()

        every = tuple(range(1, len(tensors) + 1))
        ours = vmap(grad_and_value(by_kernel, every))(direction, *tensors)
        theirs = vmap(grad_and_value(by_layers, every))(direction, *tensors)
        for a, b in zip((*ours[0], ours[1]), (*theirs[0], theirs[1])):
            assert float((a - b).abs().max()) < 1e-12 * (1.0 + float(b.abs().max()))
        for k in range(3):
            alone = grad(by_kernel, every)(direction[k], *(t[k] for t in tensors))
            for a, b in zip(alone, theirs[0]):
                assert float((a - b[k]).abs().max()) < 1e-12 * (1.0 + float(b.abs().max()))


def test_operators_describe_themselves():
    """Fake outputs have the shapes of the real ones, as the compiler relies on."""
    layer = layer_of(40, 33, False)
    x, weight, bias, direction = stacked_of([layer])
    torch.library.opcheck(masked._forward, (x, weight, bias, *layer.fold, 0.001))
    grad_in_parts = torch.stack([direction, direction], 1)
    torch.library.opcheck(masked._backward, (grad_in_parts, bias, weight, *layer.fold, 0.001, 40))


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("size", [*SIZES, (784, 250, False), (250, 1568, True)])
def test_triton_is_its_twin(size, k):
    """Against the twin in double precision."""
    layer = layer_of(*size)
    x, weight, bias, direction = stacked_of([layer], k)
    in_parts = torch.stack([direction, 0.5 * direction, -2.0 * direction], 1)
    y, folded = masked._forward(x, weight, bias, *layer.fold, 0.001)
    parts, rows = masked._backward(in_parts, y, weight, *layer.fold, 0.001, layer.inputs)

    def to(t):
        return t.float().cuda() if t.is_floating_point() else t.cuda()

    there = [to(t) for t in layer.fold]
    y_there, folded_there = masked._forward(to(x), to(weight), to(bias), *there, 0.001)
    given = (to(in_parts), to(y), to(weight), *there, 0.001, layer.inputs)
    parts_there, rows_there = masked._backward(*given)
    for ours, twin in (
        (y_there, y),
        (folded_there, folded),
        (parts_there.sum(1), parts.sum(1)),
        (rows_there, rows),
    ):
        assert float((ours.cpu() - twin).abs().max()) < 1e-5 * (1.0 + float(twin.abs().max()))
