"""counter.py: the right distributions, independence across seeds, streams and steps, and permutations."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from sparsebnn.random.noise import _bits, logistics, normals, permutations, seed_tensor, stream_id

COUNT = 40_000
SEEDS = [0, 1, 2, 17, 2**40 + 3, -5]
SAMPLERS = {
    "normal": (normals, stats.norm, (0.0, 1.0, 0.0, 3.0)),
    "logistic": (logistics, stats.logistic, (0.0, np.pi**2 / 3, 0.0, 4.2)),
}
DTYPES = [torch.float32, torch.float64]
STREAM = stream_id("noise")


def draw(name, seeds, stream=STREAM, step=0, count=COUNT, dtype=torch.float64):
    return SAMPLERS[name][0](seed_tensor(seeds), stream, step, count, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_kolmogorov_smirnov(name, dtype):
    """Each seed's numbers follow the exact distribution; p-values are not extreme, nor all alike."""
    exact = SAMPLERS[name][1]
    p = [stats.kstest(row.double().numpy(), exact.cdf).pvalue for row in draw(name, SEEDS, dtype=dtype)]
    # Six tests at 1e-3 each would refuse a right generator once in 170 choices of the seeds.
    assert min(p) > 1e-3
    assert stats.kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("name", SAMPLERS)
def test_moments(name):
    """Mean, variance, skewness and kurtosis within 4 computed standard errors, all seeds pooled."""
    x = draw(name, SEEDS).flatten()
    mean, var, skew, kurtosis = SAMPLERS[name][2]
    standard = (x - mean) / var**0.5
    for power, exact in ((1, 0.0), (2, 1.0), (3, skew), (4, kurtosis)):
        values = standard**power
        error = float(values.std()) / len(values) ** 0.5
        assert abs(float(values.mean()) - exact) < 4 * error, power


@pytest.mark.parametrize("name", SAMPLERS)
def test_tails(name):
    """As many numbers beyond the 1e-2, 1e-3 and 1e-4 quantiles of either side as there should be."""
    x = draw(name, SEEDS).flatten().numpy()
    for level in (1e-2, 1e-3, 1e-4):
        for side in (x, -x):
            found = int((side > SAMPLERS[name][1].isf(level)).sum())
            assert abs(found - len(x) * level) < 4 * (len(x) * level * (1 - level)) ** 0.5


def correlations(a, b):
    """Correlation in standard errors: of the numbers and of their squares."""
    found = []
    for u, v in ((a, b), (a**2, b**2)):
        products = (u - u.mean()) * (v - v.mean())
        found.append(float(products.mean() / (products.std() / len(products) ** 0.5)))
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_independence(name):
    """Neighbouring seeds, steps, streams and kinds are uncorrelated, within 4 standard errors.

    So are neighbours in a row, and the two numbers made from one hash.
    """
    base, half = draw(name, [3])[0], COUNT // 2
    other_kind = "logistic" if name == "normal" else "normal"
    others = [
        draw(name, [4])[0],
        draw(name, [-3])[0],
        draw(name, [3 + 2**32])[0],
        draw(name, [3], step=1)[0],
        draw(name, [3], step=2**31)[0],
        draw(name, [3], stream=STREAM + 1)[0],
        draw(name, [3], stream=stream_id("order"))[0],
        draw(name, [4], stream=STREAM - 1)[0],
        draw(other_kind, [3], stream=stream_id("other"))[0],
    ]
    pairs = [pair for other in others for pair in ((base, other), (base[1:], other[:-1]))]
    pairs += [(base[:half], base[half:]), (base[:-1], base[1:]), (base[:-2], base[2:])]
    assert max(abs(z) for pair in pairs for z in correlations(*pair)) < 4


@pytest.mark.parametrize("name", SAMPLERS)
def test_seed_stream_and_step_do_not_stand_in_for_each_other(name):
    """64 combinations of neighbouring seeds, streams and steps: no two rows are related.

    A hash of stream + step would give step 1 of one stream to step 0 of the next.
    """
    each = range(4)
    rows = [draw(name, [a], STREAM + b, c, 2000)[0] for a in each for b in each for c in each]
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    # The largest of 2016 pairs: beyond 5 standard errors once in a thousand choices of the stream.
    assert float(correlation.abs().max()) < 5 / 2000**0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_replicate_is_the_same_alone_or_among_others(name, count, dtype):
    """Row k depends on its own seed and step only; any count, odd or even."""
    among = draw(name, [9, -2, 4], step=5, count=count, dtype=dtype)
    assert among.shape == (3, count)
    assert among.dtype == dtype
    for k, seed in enumerate([9, -2, 4]):
        assert torch.equal(draw(name, [seed], step=5, count=count, dtype=dtype)[0], among[k])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_step_per_replicate(name):
    """Steps may be a tensor: replicates at different steps, or a counter that lives on a device."""
    sampler = SAMPLERS[name][0]
    rows = sampler(seed_tensor([1, 1, 2]), STREAM, torch.tensor([0, 3, 3]), 6)
    for row, (seed, step) in zip(rows, ((1, 0), (1, 3), (2, 3))):
        assert torch.equal(row, draw(name, [seed], step=step, count=6, dtype=torch.float32)[0])


@pytest.mark.parametrize("name", SAMPLERS)
def test_single_precision_is_double_precision_rounded(name):
    """float32 and float64 are the same numbers, so that a run can be checked in the other precision."""
    narrow, wide = (draw(name, [5], count=10**6, dtype=dtype).double() for dtype in DTYPES)
    assert bool(narrow.isfinite().all())  # though bits round up to one
    assert float((narrow[:, :1000] - wide[:, :1000]).abs().max()) < 1e-5


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_permutations_are_permutations(count):
    """Every row holds 0 … count−1 once, and is the same alone or among others."""
    seeds = [3, 4, -9]
    rows = permutations(seed_tensor(seeds), STREAM, 2, count)
    assert torch.equal(rows.sort(-1).values, torch.arange(count).expand(3, count))
    for seed, row in zip(seeds, rows):
        assert torch.equal(permutations(seed_tensor([seed]), STREAM, 2, count)[0], row)


def test_permutations_are_the_same_on_every_device():
    """A CPU sorts by NumPy, a GPU by torch: distinct hashes have one order."""
    seeds = seed_tensor([3, 4, -9])
    expected = torch.argsort(_bits(seeds, STREAM, 2, 5000), dim=-1, stable=True)
    assert torch.equal(permutations(seeds, STREAM, 2, 5000), expected)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_permutations_are_uniform(count):
    """All count! orders are equally frequent: chi-square over seeds, and again over steps."""
    draws = 12_000
    every = {order: i for i, order in enumerate(itertools.permutations(range(count)))}
    over_seeds = permutations(torch.arange(draws), STREAM, 0, count)
    over_steps = permutations(torch.full((draws,), 7), STREAM, torch.arange(draws), count)
    for rows in (over_seeds, over_steps):
        cells = np.bincount([every[tuple(row)] for row in rows.tolist()], minlength=len(every))
        assert stats.chisquare(cells).pvalue > 1e-3
