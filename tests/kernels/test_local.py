"""Sampled outputs in bfloat16: gradients against autograd, and on CUDA a step against the eager one."""

import pytest
import torch
import torch.nn.functional as F

import sparsebnn
from sparsebnn.kernels import local
from sparsebnn.training import Settings, train

OPTIONS = local.Options((2, 1), (1, 1), (1, 1), 1)


def example():
    """Images with the channels last, moments of weights and biases, and noise and direction, contiguous."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    moments = torch.randn(5, 3, 3, 3), torch.rand(5, 3, 3, 3)
    leaves = [t.requires_grad_() for t in (x, *moments, torch.randn(5), torch.rand(5))]
    return leaves, torch.randn(4, 5, 3, 6), torch.randn(4, 5, 3, 6)


def gradients_of(leaves, noise, direction):
    """Ours and the formula's, by autograd: outputs first."""
    x, mean, var, bias, bias_var = leaves
    ours = local.sampled(x, (mean, var), (bias, bias_var), OPTIONS, lambda shape, like: noise.reshape(shape))
    variance = F.conv2d(x**2, var, bias_var, *OPTIONS)
    formula = F.conv2d(x, mean, bias, *OPTIONS) + variance.sqrt() * noise
    both = [
        [made, *torch.autograd.grad((made * direction).sum(), leaves, retain_graph=True)]
        for made in (ours, formula)
    ]
    return *both, variance


def test_gradients_are_those_of_the_formula(monkeypatch):
    """With single precision in the place of bfloat16."""
    monkeypatch.setattr(torch, "bfloat16", torch.float32)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    ours, formula, _ = gradients_of(*example())
    for made, expected in zip(ours, formula):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_reaches_means_and_gradients_but_no_variance(monkeypatch):
    seen, twin = [], local.TWINS["sampled"]
    kept = dict(local.TWINS, sampled=lambda mean, var, noise: seen.append(var) or twin(mean, var, noise))
    monkeypatch.setattr(local, "TWINS", kept)
    with torch.autocast("cpu", torch.bfloat16):
        leaves, noise, direction = example()
        ours = local.sampled(
            leaves[0], leaves[1:3], leaves[3:], OPTIONS, lambda shape, like: noise.reshape(shape)
        )
    assert ours.dtype == torch.bfloat16
    ours, formula, variance = gradients_of(leaves, noise, direction)
    for var in seen:
        torch.testing.assert_close(var, variance, rtol=1e-6, atol=0.0)
    for made, expected in zip(ours, formula):
        assert not torch.equal(made.float(), expected)
        assert F.cosine_similarity(made.float().flatten(), expected.flatten(), 0) > 0.999


def test_images_that_need_no_gradient_get_none():
    leaves, noise, direction = example()
    leaves[0].requires_grad_(False)
    x, *weights = leaves
    made = local.sampled(x, weights[:2], (None, None), OPTIONS, lambda shape, like: noise.reshape(shape))
    formula = F.conv2d(x, weights[0], None, *OPTIONS)
    formula = formula + F.conv2d(x**2, weights[1], None, *OPTIONS).sqrt() * noise
    pairs = [torch.autograd.grad((y * direction).sum(), weights[:2]) for y in (made, formula)]
    for ours, expected in zip(*pairs):
        torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.5)


@pytest.mark.parametrize("view", [lambda x: x.chunk(2, 1)[0], lambda x: x[..., ::2, ::2]])
def test_kernels_get_views_in_one_piece(monkeypatch, view):
    """The kernels read images linearly; a view that is in bfloat16 already keeps its strides."""
    seen, made = [], local._made
    monkeypatch.setattr(local, "_made", lambda *given: seen.append(given) or made(*given))
    images = torch.randn(2, 4, 6, 6, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    x = view(images.requires_grad_())
    weights = torch.randn(3, x.shape[1], 3, 3), torch.rand(3, x.shape[1], 3, 3)
    y = local.sampled(x, weights, (None, None), OPTIONS, lambda shape, like: torch.randn(shape))
    y.sum().backward()
    assert {name for name, *_ in seen} == set(local.TWINS)
    for name, *given in seen:
        pieces = given[:1] if name in ("squares", "joined") else given[:2]
        pieces += given[2:] if name == "joined" else []
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in pieces), name


def test_a_variance_of_zero_has_no_gradient():
    x, var = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, requires_grad=True)
    options = local.Options((1, 1), (0, 0), (1, 1), 1)
    y = local.sampled(x, (torch.ones(1, 1, 1, 1), var), (None, None), options, lambda shape, like: x)
    assert y.item() == pytest.approx(1.0)
    assert torch.autograd.grad(y.sum(), var)[0].item() == 0.0


@pytest.mark.gpu
def test_a_captured_resnet_follows_the_eager_one():
    """Both in bfloat16, one step at a rate of 0: the loss differs by rounding alone, the KL not at all."""
    x, y = torch.rand(64, 3, 32, 32), torch.arange(64) % 10
    settings = Settings(1, 64, 0.0, autocast="bfloat16", channels_last=True)
    network = sparsebnn.nn.resnet(18)
    captured, eager = (
        train(network, (x, y), settings=settings, device="cuda", mode=mode, progress=False)
        for mode in ("captured", "eager")
    )
    assert captured.mode == "captured"
    ours, other = captured.history[0], eager.history[0]
    assert ours.nll[0] == pytest.approx(other.nll[0], rel=0.02)
    assert ours.kl[0] == pytest.approx(other.kl[0], rel=1e-5)
