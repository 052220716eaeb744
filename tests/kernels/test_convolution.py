"""The replicated convolution: its eager twin against torch's, its kernel against the twin."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad_and_value, vmap

import sparsebnn
from sparsebnn.kernels.convolution import conv2d_moments, conv2d_replicated
from sparsebnn.kernels.dispatch import tracing

# batch, channels, size, filters, kernel, stride, padding, dilation
CASES = {
    "one channel": (7, 1, 28, 32, 5, [1, 1], [0, 0], [1, 1]),
    "many channels": (5, 32, 12, 48, 5, [1, 1], [0, 0], [1, 1]),
    "strided": (4, 3, 11, 20, 3, [2, 1], [1, 2], [1, 2]),
    "dilated": (3, 18, 9, 5, 3, [2, 2], [0, 1], [2, 1]),
}
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def _numbers(case, device, dtype, replicates=3):
    batch, channels, size, filters, kernel, *geometry = CASES[case]
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(replicates, *shape, generator=generator, dtype=dtype).to(device)

    weight = (filters, channels, kernel, kernel)
    return (
        draw(batch, channels, size, size),
        draw(*weight),
        draw(*weight) ** 2,
        draw(filters),
        draw(filters) ** 2,
    ), geometry


def _ours(geometry):
    def loss(x, mean, var, bias_mean, bias_var):
        m, v = conv2d_moments(x, mean, var, bias_mean, bias_var, geometry)
        alone = conv2d_replicated(x, mean, bias_mean, geometry)
        bare = conv2d_replicated(x, var, None, geometry)
        without_bias, _ = conv2d_moments(x, mean, var, None, None, geometry)
        return (torch.sin(m) * v).sum() + (alone**2).sum() + torch.cos(bare).sum() + (without_bias**3).mean()

    return loss


def _torchs(geometry):
    def loss(x, mean, var, bias_mean, bias_var):
        m, v = F.conv2d(x, mean, bias_mean, *geometry), F.conv2d(x**2, var, bias_var, *geometry)
        bare, without_bias = F.conv2d(x, var, None, *geometry), F.conv2d(x, mean, None, *geometry)
        return (torch.sin(m) * v).sum() + (m**2).sum() + torch.cos(bare).sum() + (without_bias**3).mean()

    return loss


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_torchs(case, device):
    """Loss and all five gradients under vmap, against torch's convolution in float64."""
    dtype = torch.float64 if device == "cpu" else torch.float32
    numbers, geometry = _numbers(case, device, dtype)
    every = (0, 1, 2, 3, 4)
    torch.set_float32_matmul_precision("highest")
    gradients, value = vmap(grad_and_value(_ours(geometry), argnums=every))(*numbers)
    wide = tuple(n.double() for n in numbers)
    expected, expected_value = vmap(grad_and_value(_torchs(geometry), argnums=every))(*wide)
    tolerance = 1e-10 if device == "cpu" else 1e-4
    for ours, theirs in zip((*gradients, value), (*expected, expected_value)):
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance


@pytest.mark.parametrize("shared", ["x", "weights"])
def test_what_replicates_share_needs_no_copy_from_the_caller(shared):
    """vmap with the input, or the weights, common to all replicates."""
    (x, mean, var, bias_mean, bias_var), geometry = _numbers("strided", "cpu", torch.float64)
    weights = (mean, var, bias_mean, bias_var)
    if shared == "x":
        dims, given = (None, 0, 0, 0, 0), (x[0], *weights)
    else:
        dims, given = (0, None, None, None, None), (x, *(w[0] for w in weights))
    ours = vmap(_ours(geometry), in_dims=dims)(*given)
    assert torch.allclose(ours, vmap(_torchs(geometry), in_dims=dims)(*given), rtol=1e-10)


def test_without_vmap_it_is_an_ordinary_differentiable_function():
    numbers, geometry = _numbers("many channels", "cpu", torch.float64, replicates=1)
    leaves = [n[0].requires_grad_() for n in numbers]
    ours = torch.autograd.grad(_ours(geometry)(*leaves), leaves)
    theirs = torch.autograd.grad(_torchs(geometry)(*leaves), leaves)
    for a, b in zip(ours, theirs):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["spike_slab", "concrete", "flow"])
def test_a_layer_gives_the_same_with_and_without_the_kernel(family):
    """On CUDA a layer recorded for the compiler uses the kernel; eagerly it uses torch's convolution."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    layer = sparsebnn.nn.Conv2d(4, 20, 3, stride=2, padding=1, family=family, device="cuda")
    x = torch.randn(5, 4, 9, 9, device="cuda")
    torch.manual_seed(0)
    plain, plain_kl = layer.forward_with_kl(x)
    torch.manual_seed(0)
    with tracing():
        fast, fast_kl = layer.forward_with_kl(x)
    assert torch.allclose(fast, plain, atol=1e-4)
    assert torch.allclose(fast_kl, plain_kl, rtol=1e-4)
