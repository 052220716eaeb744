"""masked.py: the folded map against its matrix written out from the degrees."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsebnn.kernels.dispatch import tracing
from sparsebnn.posteriors.masked import FoldedLinear, MaskedLinear

degrees = st.lists(st.integers(0, 6), min_size=1, max_size=9)


def by_hand(layer):
    """The masked matrix from the layer's rows and the degrees, one weight at a time.

    The long outputs take the rows from the left, the short ones from the right, both in the order of
    the sorted inputs; ties are kept in place.
    """
    ins, outs = layer.in_degree.tolist(), layer.out_degree.tolist()
    order = sorted(range(len(ins)), key=lambda i: ins[i])
    seen = [sum((d < o) if layer.strict else (d <= o) for d in ins) for o in outs]
    ranked = sorted(range(len(outs)), key=lambda o: seen[o])
    if len(outs) % 2:
        # The output that sees nothing comes after those that are its equals.
        ranked.insert(sum(s == 0 for s in seen), None)
    rows = len(ranked) // 2
    matrix = torch.zeros(len(outs), len(ins), dtype=layer.weight.dtype)
    for row in range(rows):
        for output, backwards in ((ranked[len(ranked) - 1 - row], False), (ranked[row], True)):
            if output is not None:
                for place in range(seen[output]):
                    column = layer.width - 1 - place if backwards else place
                    matrix[output, order[place]] = layer.weight[row, column].detach()
    return matrix


@settings(max_examples=150, deadline=None)
@given(degrees, degrees, st.booleans())
def test_matrix_follows_the_degrees(ins, outs, strict):
    """Every allowed weight is there, every other is zero, and none is used twice."""
    layer = FoldedLinear(torch.tensor(ins), torch.tensor(outs), strict).double()
    matrix = layer.matrix()
    allowed = torch.tensor([[(i < o) if strict else (i <= o) for i in ins] for o in outs])
    assert torch.equal(matrix != 0, allowed)
    assert torch.equal(matrix, by_hand(layer))
    kept = matrix[allowed]
    assert len(kept.unique()) == len(kept)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_forward_is_the_matrix_product(shape, strict):
    """Vectors and batches, eager and in the compiler's form, with their gradients."""
    generator = torch.Generator().manual_seed(0)
    ins, outs = torch.randint(0, 9, (11,)), torch.randint(0, 9, (7,))
    layer = FoldedLinear(ins, outs, strict).double()
    x = torch.randn(*shape, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(*shape, 7, generator=generator, dtype=torch.float64)
    expected = x @ by_hand(layer).T + layer.bias
    (slope,) = torch.autograd.grad(expected, x, cotangent)
    with tracing():
        compiled = layer(x)
    for y in (layer(x), compiled):
        assert float((y - expected).detach().abs().max()) < 1e-12
        dx, dw = torch.autograd.grad(y, (x, layer.weight), cotangent)
        assert float((dx - slope).abs().max()) < 1e-12
        numeric = torch.zeros_like(dw)
        with torch.no_grad():
            for place in range(layer.weight.numel()):
                layer.weight.view(-1)[place] += 0.5
                higher = (layer(x) * cotangent).sum()
                layer.weight.view(-1)[place] -= 1.0
                lower = (layer(x) * cotangent).sum()
                layer.weight.view(-1)[place] += 0.5
                numeric.view(-1)[place] = higher - lower
        assert float((dw - numeric).abs().max()) < 1e-10


@settings(max_examples=50, deadline=None)
@given(degrees, degrees, st.booleans(), st.integers(0, 99))
def test_the_compilers_form_has_first_and_second_derivatives(ins, outs, strict, seed):
    """Whatever the degrees: rows longer than the inputs, and shorter ones."""
    layer = FoldedLinear(torch.tensor(ins), torch.tensor(outs), strict).double()
    x = torch.randn(len(ins), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def compiled(x):
        with tracing():
            return layer(x)

    x.requires_grad_()
    assert torch.autograd.gradcheck(compiled, x)
    assert torch.autograd.gradgradcheck(lambda x: compiled(x**2), x)


@pytest.mark.parametrize("gaps", [False, True])
def test_the_operator_is_what_the_compiler_is_told(gaps):
    x, places = torch.randn(2, 5), torch.tensor([4, 0, 5 if gaps else 1])
    lists = [places, places.flip(0)]
    torch.library.opcheck(torch.ops.sparsebnn.pick.default, (x, lists, gaps))
    padded = torch.cat([x, torch.zeros(2, 1)], 1)
    found = torch.ops.sparsebnn.pick(x, lists, gaps)
    assert torch.equal(found, padded[:, places] + padded[:, places.flip(0)])


def test_it_takes_half_the_memory():
    """Sizes of the paper's first layer: at most 56% of the matrix."""
    torch.manual_seed(0)
    hidden = torch.sort(torch.randint(0, 783, (250,))).values
    for ins, outs, strict in (
        (torch.randperm(784), hidden, False),
        (hidden, hidden, False),
        (hidden, torch.randperm(784).repeat(2), True),
    ):
        layer = FoldedLinear(ins, outs, strict)
        assert layer.weight.numel() < 0.56 * len(ins) * len(outs)


def test_weights_of_another_order_are_refused():
    """The same numbers under other degrees are another map."""
    layer = FoldedLinear(torch.arange(3), torch.arange(3), False)
    other = FoldedLinear(torch.arange(3).flip(0), torch.arange(3), False)
    layer.load_state_dict(layer.state_dict())
    message = "'in_degree' differs: these weights are those of another ordering"
    with pytest.raises(RuntimeError, match=message):
        layer.load_state_dict(other.state_dict())


@settings(max_examples=100, deadline=None)
@given(degrees, degrees, st.booleans())
def test_the_masked_matrix_follows_the_degrees_too(ins, outs, strict):
    """The plain form: every allowed weight as stored, every other zero; vectors in both forms."""
    layer = MaskedLinear(torch.tensor(ins), torch.tensor(outs), strict).double()
    allowed = torch.tensor([[(i < o) if strict else (i <= o) for i in ins] for o in outs])
    expected = torch.where(allowed, layer.weight, 0.0).detach()
    assert torch.equal(layer.matrix(), expected)
    x = torch.linspace(-1.0, 2.0, len(ins), dtype=torch.float64)
    with tracing():
        compiled = layer(x)
    for y in (layer(x), compiled):
        assert float((y - expected @ x - layer.bias).detach().abs().max()) < 1e-12
