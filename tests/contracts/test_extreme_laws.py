"""Nothing overflows: extreme parameters and dead inputs give finite values and gradients in float32."""

import pytest
import torch

from contracts.members import FAMILIES, LAYERS, PASSES, WITH_Z, make_input, make_layer, tape_block
from sparsebnn.nn.passes import PosteriorPass
from sparsebnn.random.noise import NoiseBuffer

# softplus of these is 1e-8 and 1e3.
TINY_STD, HUGE_STD = -18.420680743952367, 1000.0
DTYPE = torch.float32

EXTREMES = {
    "all_in_tiny": (40.0, TINY_STD),
    "all_in_huge": (40.0, HUGE_STD),
    "all_out_tiny": (-40.0, TINY_STD),
    "all_out_huge": (-40.0, HUGE_STD),
    "mixed": (None, None),
}


@torch.no_grad()
def make_extreme(module, logit, raw_std):
    """Set every inclusion logit and raw std of weights and biases; None alternates the extremes."""
    for name, parameter in module.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind not in ("inclusion_logit", "raw_std"):
            continue
        value, pair = (logit, (40.0, -40.0)) if kind == "inclusion_logit" else (raw_std, (TINY_STD, HUGE_STD))
        if value is not None:
            parameter.fill_(value)
            continue
        # Different periods, so that all four combinations occur.
        period = 1 if kind == "inclusion_logit" else 2
        at = torch.arange(parameter.numel()).reshape(parameter.shape) // period % 2
        parameter.copy_(torch.where(at == 0, pair[0], pair[1]))


def check_finite(layer, x, kind, noise):
    """Output, KL (where the pass has one) and all gradients are finite."""
    with kind(noise) as opened:
        y = layer(x)
    assert bool(y.isfinite().all())
    loss = (y**2).sum()
    if kind is PosteriorPass:
        kl = opened.kl()
        assert bool(kl.isfinite())
        loss = loss + kl
    assert bool(loss.isfinite())
    layer.zero_grad(set_to_none=True)
    loss.backward()
    for name, parameter in layer.named_parameters():
        if parameter.grad is not None:
            assert bool(parameter.grad.isfinite().all()), name
    # The means of included weights always take part, unless nothing reaches them.
    assert any(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_extreme_parameters(family, layer, kind):
    """Inclusion logits ±40 with stds 1e-8 and 1e3, alone and mixed, in every pass."""
    for logit, raw_std in EXTREMES.values():
        built = make_layer(layer, family, 1, DTYPE)
        make_extreme(built, logit, raw_std)
        x = make_input(layer, dtype=DTYPE)
        check_finite(built, x, PASSES[kind], NoiseBuffer(*tape_block(built, x, 3, PASSES[kind])))


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_dead_inputs_without_bias(family, layer, kind):
    """All-zero inputs: the variance is exactly 0, where the square root has no derivative."""
    for logit, raw_std in EXTREMES.values():
        built = make_layer(layer, family, 1, DTYPE, bias=False)
        make_extreme(built, logit, raw_std)
        x = torch.zeros_like(make_input(layer, dtype=DTYPE))
        noise = NoiseBuffer(*tape_block(built, x, 3, PASSES[kind]))
        check_finite(built, x, PASSES[kind], noise)
        with torch.no_grad(), PASSES[kind](NoiseBuffer(*tape_block(built, x, 3, PASSES[kind]))):
            # The floor under the variance must not be seen.
            assert float(built(x).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", WITH_Z)
def test_z_at_zero(family, layer, kind):
    """z = 0 exactly switches every mean off; values and gradients stay finite."""
    for logit, raw_std in EXTREMES.values():
        built = make_layer(layer, family, 1, DTYPE, bias=False, length=0)
        make_extreme(built, logit, raw_std)
        with torch.no_grad():
            built.weights.z0_mean.zero_()
        x = make_input(layer, dtype=DTYPE)
        normals, logistics = tape_block(built, x, 3, PASSES[kind])
        normals[: len(x) * built.weights.dim if built.weights.z_per == "example" else built.weights.dim] = 0.0
        assert float(built.weights.draw_z(NoiseBuffer(normals, logistics))[0].detach().abs().max()) == 0.0
        check_finite(built, x, PASSES[kind], NoiseBuffer(normals, logistics))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", WITH_Z)
def test_auxiliary_direction_at_zero(family, layer):
    """e = 0 makes the variance of eᵀ(W⊙Γ) exactly 0, where the square root has no derivative."""
    built = make_layer(layer, family, 1, DTYPE)
    with torch.no_grad():
        built.weights.auxiliary_direction.zero_()
    x = make_input(layer, dtype=DTYPE)
    check_finite(built, x, PosteriorPass, NoiseBuffer(*tape_block(built, x, 3)))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", ["concrete", "concrete_hierarchical"])
def test_the_paper_relaxation(family, layer):
    """At a relaxation of 0.001 the draw saturates: gradients are 0 or finite, never NaN."""
    built = make_layer(layer, family, 1, DTYPE, relaxation=0.001)
    x = make_input(layer, dtype=DTYPE)
    check_finite(built, x, PosteriorPass, NoiseBuffer(*tape_block(built, x, 3)))
