"""kernels/contraction.py against a plain product, and Triton against its twin."""

import pytest
import torch
from torch.func import grad_and_value, vmap

from sparsebnn.kernels import contraction
from sparsebnn.kernels.contraction import row_sums

SIZES = [(1, 1), (10, 600), (64, 5), (150, 33)]


def numbers(size, k=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    rows, columns = size
    shapes = ((rows, columns), (columns,), (rows,))
    return [torch.randn(k, *shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_the_product(size):
    """Under vmap and one by one, at 1e-12."""

    def ours(weight, vector, direction):
        return (torch.sin(row_sums(weight, vector)) * direction).sum()

    def theirs(weight, vector, direction):
        return (torch.sin(weight @ vector) * direction).sum()

    given = numbers(size)
    got, value = vmap(grad_and_value(ours, (0, 1)))(*given)
    wanted, expected = vmap(grad_and_value(theirs, (0, 1)))(*given)
    alone, _ = grad_and_value(ours, (0, 1))(*(t[1] for t in given))
    for a, b in zip((*got, value), (*wanted, expected)):
        assert float((a - b).abs().max()) < 1e-12 * (1.0 + float(b.abs().max()))
    for a, b in zip(alone, wanted):
        assert float((a - b[1]).abs().max()) < 1e-12 * (1.0 + float(b.abs().max()))


def test_operator_describes_itself():
    weight, _, direction = numbers((150, 33))
    torch.library.opcheck(contraction._column_sums, (weight, direction))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES, (400, 784), (600, 400)])
def test_triton_is_its_twin(size):
    weight, _, direction = numbers(size)
    twin = contraction._column_sums(weight, direction)
    ours = contraction._column_sums(weight.float().cuda(), direction.float().cuda())
    assert ours.shape == twin.shape
    assert float((ours.cpu() - twin).abs().max()) < 1e-5 * (1.0 + float(twin.abs().max()))
