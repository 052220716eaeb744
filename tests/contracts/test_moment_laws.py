"""The local reparametrization has the right mean and variance: enumeration, and unfolded convolutions."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from contracts.members import FAMILIES, WITH_Z, generator, randomise, spike_slab_prior, tape_block, uniform
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.convolutions import Conv1d, Conv2d
from sparsebnn.nn.layers import Linear
from sparsebnn.nn.passes import LocalPass, PosteriorPass
from sparsebnn.posteriors import Moments
from sparsebnn.random.noise import NoiseBuffer

# Few weights per output, so that all structures can be listed: 2^8, 2^6, 2^8 of them.
SMALL = {
    "linear": (lambda **kw: Linear(4, 2, **kw), (3, 4)),
    "conv1d": (lambda **kw: Conv1d(1, 2, 3, stride=2, padding=1, **kw), (3, 1, 6)),
    "conv2d": (lambda **kw: Conv2d(1, 2, (2, 2), padding=1, stride=(1, 2), **kw), (3, 1, 3, 4)),
}
MOMENT_FAMILIES = [
    name for name, m in FAMILIES.items() if m.family != "concrete" and name != "gaussian_gamma"
]


def small_layer(layer, family, seed, bias=True, **options):
    build, _ = SMALL[layer]
    member = FAMILIES[family]
    shape = build(family="gaussian").weights.shape
    built = build(
        family=member.family,
        prior=member.prior(shape, generator(seed)),
        family_options={**member.options, **options},
        bias=bias,
        dtype=torch.float64,
    )
    return randomise(built, seed)


def patches(layer, x):
    """For every example, output position and group, the inputs that meet the kernel: (B, P, G, I).

    Written with explicit indices rather than a library's unfold.
    """
    if isinstance(layer, Linear):
        return x[:, None, None, :]
    kernel, dims = layer.kernel_size, layer.dims
    if layer.padding == "valid":
        pads = [(0, 0)] * dims
    elif layer.padding == "same":
        spans = [d * (k - 1) for d, k in zip(layer.dilation, kernel)]
        pads = [(span // 2, span - span // 2) for span in spans]
    else:
        pads = [(p, p) for p in layer.padding]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, [p for pair in reversed(pads) for p in pair], mode=mode)
    counts = [
        (size - d * (k - 1) - 1) // s + 1
        for size, d, k, s in zip(x.shape[2:], layer.dilation, kernel, layer.stride)
    ]
    found = []
    for position in itertools.product(*map(range, counts)):
        corner = [
            x.new_tensor([i * s + d * j for j in range(k)], dtype=torch.long)
            for i, s, d, k in zip(position, layer.stride, layer.dilation, kernel)
        ]
        cut = x
        for axis, index in enumerate(corner):
            cut = cut.index_select(axis + 2, index)
        found.append(cut.reshape(len(x), layer.groups, -1))
    return torch.stack(found, 1)


def as_output(layer, h, like):
    """(B, P, filters) in the layout of the layer's output."""
    return h.squeeze(1) if isinstance(layer, Linear) else h.transpose(1, 2).reshape(like.shape)


def z_of(layer, normals, batch):
    """z as the pass draws it from the front of the tape, one row per example; None without z."""
    family = layer.weights
    if not hasattr(family, "z0_mean"):
        return None
    rows = batch if family.z_per == "example" else 1
    eps = normals[: rows * family.dim].reshape(rows, family.dim)
    z, _ = family.q_flow(family.z0_mean + torch.exp(0.5 * family.z0_log_var) * eps)
    return z.expand(batch, family.dim)


def logits_of(family, normals):
    """Inclusion logits, given the u from the front of the tape where there is one."""
    if not hasattr(family, "factor"):
        return family.inclusion_logit
    return family.inclusion_logit + torch.einsum("r,r...->...", normals[: family.rank], family.factor)


@torch.no_grad()
def enumerated_moments(layer, x, z, normals=None):
    """E h and Var h by listing every Γ: the mean of conditional variances plus the variance of means."""
    family = getattr(layer.weights, "conditional", layer.weights)
    shape, axis = family.shape, layer.z_axis
    scale = torch.ones(len(x), *[1] * len(shape), dtype=x.dtype)
    if z is not None:
        scale = z.reshape(len(x), *[-1 if i == axis else 1 for i in range(len(shape))])
    mean = (family.mean * scale).flatten(2)  # (B, filters, I)
    var = F.softplus(family.raw_std).flatten(1) ** 2
    inputs = patches(layer, x).squeeze(2)  # (B, P, I)
    if hasattr(family, "inclusion_logit"):
        structures = torch.tensor(
            list(itertools.product((0.0, 1.0), repeat=family.mean.numel())), dtype=x.dtype
        )
        alpha = torch.sigmoid(logits_of(family, normals)).flatten()
        mass = torch.where(structures > 0, alpha, 1 - alpha).prod(1)
    else:
        structures, mass = torch.ones(1, family.mean.numel(), dtype=x.dtype), torch.ones(1, dtype=x.dtype)
    gamma = structures.reshape(-1, *var.shape)  # (S, filters, I)
    means = torch.einsum("bpi,bfi,sfi->sbpf", inputs, mean, gamma)
    variances = torch.einsum("bpi,fi,sfi->sbpf", inputs**2, var, gamma)
    first = torch.einsum("s,sbpf->bpf", mass, means)
    second = torch.einsum("s,sbpf->bpf", mass, variances + (means - first) ** 2)
    if layer.biases is not None:
        first = first + layer.biases.mean
        second = second + F.softplus(layer.biases.raw_std) ** 2
    return first, second


def pass_moments(layer, x, kind, seed):
    """Mean and variance of the output as a pass uses them, read off by giving it noise 0 and then 1."""
    normals, logistics = tape_block(layer, x, seed, kind)
    with torch.no_grad():
        with kind(NoiseBuffer(normals, logistics)):
            size = layer(x).numel()
        outputs = []
        for value in (0.0, 1.0):
            normals[-size:] = value
            with kind(NoiseBuffer(normals, logistics)):
                outputs.append(layer(x))
        zero, one = outputs
    return zero, (one - zero) ** 2, normals


@pytest.mark.parametrize("kind", [PosteriorPass, LocalPass], ids=["posterior", "local"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("layer", SMALL)
@pytest.mark.parametrize("family", MOMENT_FAMILIES)
def test_output_moments_by_enumeration(family, layer, bias, kind):
    """Mean and variance of every output, given z, against the list of all structures Γ."""
    for seed in range(3):
        built = small_layer(layer, family, seed, bias)
        x = torch.randn(SMALL[layer][1], generator=generator(seed), dtype=torch.float64)
        mean, var, normals = pass_moments(built, x, kind, seed)
        expected = enumerated_moments(built, x, z_of(built, normals, len(x)), normals)
        for ours, oracle in zip((mean, var), expected):
            assert float((ours - as_output(built, oracle, ours)).abs().max()) < 1e-10


@pytest.mark.parametrize("family", ["flow", "flow_example"])
def test_z_on_the_outputs_of_a_dense_layer(family):
    """``z_axis`` is the axis that z multiplies, also when it is not the layer's own; by enumeration.

    A layer may refuse what it cannot do; it may not be silently wrong.
    """
    try:
        built = small_layer("linear", family, 1, z_axis=0)
    except InvalidInput:
        return
    x = torch.randn(3, 4, generator=generator(1), dtype=torch.float64)
    mean, var, normals = pass_moments(built, x, LocalPass, 2)
    z = z_of(built, normals, len(x))
    built.z_axis = 0  # for the oracle
    expected = enumerated_moments(built, x, z)
    for ours, oracle in zip((mean, var), expected):
        assert float((ours - as_output(built, oracle, ours)).abs().max()) < 1e-10


@pytest.mark.parametrize("family", WITH_Z)
def test_one_z_per_example_of_a_sequence(family):
    """A dense layer on (batch, time, features): time steps share their example's z.

    Oracle: the moments of each time step alone, from the same z.
    """
    built = small_layer("linear", family, 2)
    x = torch.randn(3, 3, 4, generator=generator(2), dtype=torch.float64)
    mean, var, normals = pass_moments(built, x, LocalPass, 2)
    for t in range(x.shape[1]):
        expected = enumerated_moments(built, x[:, t], z_of(built, normals, len(x)), normals)
        for ours, oracle in zip((mean[:, t], var[:, t]), expected):
            assert float((ours - oracle.squeeze(1)).abs().max()) < 1e-10


CONVOLUTIONS = {
    "1d": (Conv1d, (2, 3, 3), {}, (2, 7)),
    "1d_stride": (Conv1d, (2, 4, 3), {"stride": 2, "padding": 2}, (2, 8)),
    "1d_groups": (Conv1d, (4, 6, 2), {"groups": 2, "dilation": 2, "padding": 1}, (4, 7)),
    "1d_same": (Conv1d, (2, 3, 4), {"padding": "same", "dilation": 2}, (2, 7)),
    "1d_circular": (Conv1d, (2, 3, 3), {"padding": 2, "padding_mode": "circular"}, (2, 7)),
    "2d": (Conv2d, (2, 3, (3, 2)), {}, (2, 5, 4)),
    "2d_stride": (Conv2d, (2, 3, 3), {"stride": (2, 1), "padding": (1, 2)}, (2, 6, 5)),
    "2d_groups": (Conv2d, (4, 4, (2, 3)), {"groups": 4, "dilation": (2, 1), "stride": 2}, (4, 6, 6)),
    "2d_valid": (Conv2d, (2, 2, 2), {"padding": "valid"}, (2, 4, 4)),
    "2d_same_reflect": (Conv2d, (2, 2, (4, 3)), {"padding": "same", "padding_mode": "reflect"}, (2, 5, 6)),
    "2d_replicate": (Conv2d, (2, 2, 3), {"padding": (2, 1), "padding_mode": "replicate"}, (2, 5, 4)),
}


@pytest.mark.parametrize("per_example", [False, True], ids=["one_z", "z_per_example"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@torch.no_grad()
def test_convolution_is_a_dense_layer_on_patches(name, per_example):
    """Mean and variance of a convolution are those of a dense layer on the unfolded input.

    Per example, with z on the filters, the dense layer gets that example's own moments.
    """
    kind, sizes, options, example = CONVOLUTIONS[name]
    g = generator(11)
    conv = kind(*sizes, **options, dtype=torch.float64)
    x = torch.randn(3, *example, generator=g, dtype=torch.float64)
    shape, groups = conv.weights.shape, conv.groups
    mean = torch.randn(shape, generator=g, dtype=torch.float64)
    var, between = uniform(shape, 0.1, 2.0, g), uniform(shape, 0.1, 2.0, g)
    b_mean, b_var = torch.randn(shape[0], generator=g, dtype=torch.float64), uniform(shape[:1], 0.1, 1.0, g)
    z = torch.randn(len(x), shape[0], generator=g, dtype=torch.float64)
    moments = Moments(mean, var, z, between) if per_example else Moments(mean, var)
    ours = conv.output_moments(x, moments, b_mean, b_var)

    inputs = patches(conv, x)
    per_group = shape[0] // groups
    dense = Linear(inputs.shape[-1], per_group, dtype=torch.float64)
    for b in range(len(x)):
        one = z[b].reshape(-1, *[1] * (len(shape) - 1)) if per_example else torch.ones(()).double()
        own_mean = (mean * one).flatten(1)
        own_var = (var + between * one**2 if per_example else var).flatten(1)
        columns = []
        for group in range(groups):
            rows = slice(group * per_group, (group + 1) * per_group)
            columns.append(
                dense.output_moments(
                    inputs[b, :, group], Moments(own_mean[rows], own_var[rows]), b_mean[rows], b_var[rows]
                )
            )
        for which in range(2):
            oracle = torch.cat([pair[which] for pair in columns], 1).T.reshape(ours[which][b].shape)
            assert float((ours[which][b] - oracle).abs().max()) < 1e-10


def test_concrete_local_moments_by_enumeration():
    """Predictions of ``concrete`` use exact inclusions: its local moments are those of spike and slab."""
    layer = Linear(4, 2, family="concrete", prior=spike_slab_prior((2, 4), generator(1)), dtype=torch.float64)
    randomise(layer, 5)
    x = torch.randn(3, 4, generator=generator(1), dtype=torch.float64)
    mean, var, _ = pass_moments(layer, x, LocalPass, 2)
    for ours, oracle in zip((mean, var), enumerated_moments(layer, x, None)):
        assert float((ours - oracle.squeeze(1)).abs().max()) < 1e-10
