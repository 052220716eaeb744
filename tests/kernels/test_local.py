"""Sampled outputs in bfloat16: gradients against autograd, and on CUDA a step against the eager one."""

import pytest
import torch
import torch.nn.functional as F

import sparsebnn
from sparsebnn.kernels import local
from sparsebnn.training import Settings, train


def test_gradients_are_those_of_the_formula(monkeypatch):
    """With single precision in the place of bfloat16; the noise is contiguous, the images are not."""
    monkeypatch.setattr(torch, "bfloat16", torch.float32)
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    mean, var = torch.randn(5, 3, 3, 3, requires_grad=True), torch.rand(5, 3, 3, 3, requires_grad=True)
    noise, direction = torch.randn(4, 5, 6, 6), torch.randn(4, 5, 6, 6)

    def op(images, squares):
        return F.conv2d(images, var if squares else mean, padding=1)

    ours = local.sampled(x, op, lambda shape, like: noise.reshape(shape))
    formula = F.conv2d(x, mean, padding=1) + F.conv2d(x**2, var, padding=1).sqrt() * noise
    torch.testing.assert_close(ours, formula)
    for made, expected in zip(
        torch.autograd.grad((ours * direction).sum(), [x, mean, var]),
        torch.autograd.grad((formula * direction).sum(), [x, mean, var]),
    ):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def test_a_variance_of_zero_has_no_gradient():
    var = torch.zeros(1, 1, 1, 1, requires_grad=True)
    y = local._Sampled.apply(torch.ones(1, 1, 1, 1), var, torch.ones(1, 1, 1, 1))
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
