"""layers.py and families: what a layer refuses, its dtype, and where it starts."""

import pytest
import torch
from torch import nn

from contracts.members import FAMILIES, LAYERS, PASSES, make_input, make_layer
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import Linear


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Linear(4, 2)(torch.zeros(3, 5)), "'x' of Linear"),
        (lambda: Linear(4, 2)(torch.zeros(3, 2, 2)), "'x' of Linear"),
        (lambda: Linear(4, 2)(torch.zeros(4)), "'x' of Linear"),
        (lambda: Conv1d(2, 3, 3)(torch.zeros(1, 3, 7)), "'x' of Conv1d"),
        (lambda: Conv1d(2, 3, 3)(torch.zeros(2, 7)), "'x' of Conv1d"),
        (lambda: Conv2d(2, 3, 3)(torch.zeros(2, 7, 7)), "'x' of Conv2d"),
        (lambda: Linear(4, 2, family="spike_slabs"), "'family' of Linear"),
        (lambda: Conv2d(4, 2, 3, family="horseshoe"), "'family' of Conv2d"),
        (lambda: Linear(0, 2), "'in_features' of Linear"),
        (lambda: Linear(4, 2.5), "'out_features' of Linear"),
        (lambda: Conv2d(3, 4, 3, groups=2), "'in_channels' of Conv2d"),
        (lambda: Conv1d(4, 3, 3, groups=2), "'out_channels' of Conv1d"),
        (lambda: Conv2d(4, 4, 3, groups=0), "'groups' of Conv2d"),
        (lambda: Conv2d(4, 4, (3, 3, 3)), "'kernel_size' of Conv2d"),
        (lambda: Conv1d(4, 4, 3, stride=0), "'stride' of Conv1d"),
        (lambda: Conv2d(4, 4, 3, padding=-1), "'padding' of Conv2d"),
        (lambda: Conv2d(4, 4, 3, padding="sam"), "'padding' of Conv2d"),
        (lambda: Conv2d(4, 4, 3, padding="same", stride=2), "'padding' of Conv2d"),
        (lambda: Conv2d(4, 4, 3, padding_mode="zero"), "'padding_mode' of Conv2d"),
    ],
)
def test_messages(call, named):
    with pytest.raises(InvalidInput, match=f"The {named} must be "):
        call()


@pytest.mark.parametrize("kind", [Linear, lambda *a: Conv1d(*a, 3), lambda *a: Conv2d(*a, 3)])
def test_weight_is_refused(kind):
    """Code that reads ``.weight`` would bypass the posterior."""
    layer = kind(2, 3)
    with pytest.raises(TypeError, match=f"A Bayesian {type(layer).__name__} has a distribution"):
        _ = layer.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_dtype_is_kept(family, layer, dtype):
    """All parameters, outputs and the KL have the layer's dtype, in every pass."""
    built, x = make_layer(layer, family, 1, dtype), make_input(layer, dtype=dtype)
    assert {p.dtype for p in built.parameters()} == {dtype}
    for kind in PASSES.values():
        with torch.no_grad(), kind() as opened:
            assert built(x).dtype == dtype
        assert all(kl.dtype == dtype for _, kl in opened.kl_by_layer())


CONV2D = {"padding": "same", "padding_mode": "circular", "dilation": (1, 2)}


@pytest.mark.parametrize(
    ("ours", "torchs", "arguments", "options", "example"),
    [
        (Linear, nn.Linear, (4, 3), {}, (4,)),
        (Linear, nn.Linear, (4, 3), {}, (2, 5, 4)),
        (Conv1d, nn.Conv1d, (4, 6, 3, 2, 1, 2, 2), {}, (4, 9)),
        (
            Conv2d,
            nn.Conv2d,
            (4, 6, (3, 2), (1, 2), (2, 1), (1, 2), 2),
            {"padding_mode": "reflect"},
            (4, 8, 9),
        ),
        (Conv2d, nn.Conv2d, (2, 3, (4, 3)), CONV2D, (2, 7, 8)),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_op_is_torchs(ours, torchs, arguments, options, example, bias):
    """The op with given weights is the torch layer with the same arguments."""
    layer, oracle = (kind(*arguments, **options, bias=bias, dtype=torch.float64) for kind in (ours, torchs))
    x = torch.randn(3, *example, dtype=torch.float64)
    assert tuple(oracle.weight.shape) == layer.weights.shape
    assert torch.allclose(layer.op(x, oracle.weight, oracle.bias), oracle(x), atol=1e-12)


@torch.no_grad()
def test_start_from_survives_a_reset():
    """Pretrained means stay when the rest is drawn anew."""
    layer, weight, bias = Linear(3, 2), torch.randn(2, 3), torch.randn(2)
    layer.start_from(weight, bias)
    before = layer.weights.inclusion_logit.clone()
    layer.reset_parameters()
    assert torch.equal(layer.weights.mean, weight)
    assert torch.equal(layer.biases.mean, bias)
    assert not torch.equal(layer.weights.inclusion_logit, before)
    assert all(name.startswith("weights.") for name, _ in Linear(3, 2, bias=False).named_parameters())


def test_hierarchical_layers_learn_their_bias_prior_too():
    """LBBNN's biases have a Gamma-precision prior unless told otherwise."""
    from sparsebnn.posteriors.learned_priors import GammaPrecisionPrior, HierarchicalPrior
    from sparsebnn.posteriors.priors import GaussianPrior

    layer = Linear(3, 2, family="concrete", prior=HierarchicalPrior())
    assert isinstance(layer.biases.prior, GammaPrecisionPrior)
    plain = Linear(3, 2, family="concrete", prior=HierarchicalPrior(), bias_prior=GaussianPrior(std=2.0))
    assert float(plain.biases.prior.std) == 2.0
    assert isinstance(Linear(3, 2, family="concrete").biases.prior, GaussianPrior)


@pytest.mark.parametrize("padding", [0, 2, "same", "valid"])
@pytest.mark.parametrize("dilation", [1, 3])
def test_the_smallest_input_is_that_of_torch(padding, dilation):
    """What is refused is what torch refuses."""
    ours, plain = (make(1, 2, 3, padding=padding, dilation=dilation) for make in (Conv2d, torch.nn.Conv2d))
    for size in range(1, 9):
        x = torch.zeros(2, 1, size, 9)
        try:
            wanted = plain(x).shape
        except RuntimeError:
            with pytest.raises(InvalidInput, match="of a height of at least"):
                ours(x)
        else:
            assert ours(x).shape == wanted


@pytest.mark.parametrize(
    ("family", "options", "named"),
    [
        ("concrete", {"relaxation": 0.0}, "relaxation"),
        ("concrete", {"relaxation": -0.5}, "relaxation"),
        ("flow", {"auxiliary": "moment"}, "auxiliary"),
        ("flow", {"z_per": "example", "auxiliary": "drawn"}, "auxiliary"),
        ("flow", {"z_per": "row"}, "z_per"),
        ("mnf", {"squash": "relu"}, "squash"),
        ("spike_slab", {"group_by": "neuron"}, "group_by"),
        ("flow", {"group_by": "output"}, "group_by"),
    ],
)
def test_options_of_families(family, options, named):
    with pytest.raises(InvalidInput, match=f"The '{named}' of the '{family}' family must be "):
        Linear(4, 2, family=family, family_options=options)
