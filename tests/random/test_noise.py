"""noise.py: the three sources of noise, their contracts and their one complaint."""

import pytest
import torch
from scipy import stats

from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.networks import mlp
from sparsebnn.nn.passes import noise_size
from sparsebnn.random.noise import NoiseBuffer, NoiseCounter, RandomNoise

LIKE = torch.zeros(1, dtype=torch.float64)


def test_tape_reads_front_to_back():
    """Each kind has its own place on the tape; shapes are cut in order."""
    tape = NoiseBuffer(torch.arange(10.0), torch.arange(100.0, 106.0))
    assert tape.normal((2, 2), LIKE).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert tape.logistic((3,), LIKE).tolist() == [100.0, 101.0, 102.0]
    assert tape.normal((), LIKE).item() == 4.0
    assert tape.normal((5, 1), LIKE).flatten().tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert tape.logistic((1, 3), LIKE).tolist() == [[103.0, 104.0, 105.0]]


@pytest.mark.parametrize(("kind", "normals", "logistics"), [("normal", 3, 9), ("logistic", 9, 3)])
def test_tape_too_short(kind, normals, logistics):
    """The kind that ran out, and how long the tape should be."""
    tape = NoiseBuffer(torch.zeros(normals), torch.zeros(logistics))
    ask = getattr(tape, kind)
    ask((2,), LIKE)
    with pytest.raises(InvalidInput, match=f"'{kind}' of NoiseBuffer must be at least 4 numbers long"):
        ask((2, 1), LIKE)


def test_meter_counts_and_hands_out_zeros():
    """Shapes and dtypes as asked, the sum of their sizes kept."""
    meter = NoiseCounter()
    assert meter.size == (0, 0)
    first, second = meter.normal((2, 3), LIKE), meter.logistic((4,), LIKE)
    meter.normal((), LIKE)
    assert meter.size == (7, 4)
    assert first.shape == (2, 3)
    assert first.dtype == torch.float64
    assert not first.any()
    assert not second.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fresh_has_the_exact_distributions(dtype):
    """Kolmogorov-Smirnov against scipy's normal and logistic."""
    fresh, like = RandomNoise(generator(1)), torch.zeros((), dtype=dtype)
    for ask, exact in ((fresh.normal, stats.norm), (fresh.logistic, stats.logistic)):
        x = ask((200, 100), like)
        assert x.dtype == dtype
        assert stats.kstest(x.flatten().double().numpy(), exact.cdf).pvalue > 1e-3


def test_fresh_logistic_is_finite_at_the_ends(monkeypatch):
    """A uniform number of exactly 0, or the largest below 1, does not become infinite."""
    for dtype in (torch.float32, torch.float64):
        ends = torch.tensor([0.0, 1.0 - torch.finfo(dtype).eps / 2], dtype=dtype)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", lambda *a, ends=ends, **k: ends)
            assert bool(RandomNoise().logistic((2,), ends).isfinite().all())


def test_noise_size_of_a_network():
    """Counts written out by hand: one number per output of the local reparametrization."""
    network = mlp([4, 8, 3])
    assert noise_size(network, torch.zeros(5, 4)) == (5 * 8 + 5 * 3, 0)
    drawn = mlp([4, 8, 3], family="concrete")
    assert noise_size(drawn, torch.zeros(5, 4)) == (4 * 8 + 8 + 8 * 3 + 3, 4 * 8 + 8 * 3)
    flow = mlp([4, 3], family="flow", family_options={"hidden": (5,)})
    # z, one s per output unit, one number per output.
    assert noise_size(flow, torch.zeros(5, 4)) == (4 + 3 + 5 * 3, 0)
