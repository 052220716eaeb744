"""Augmentations: what they do to pixels, and that a row's noise depends on its seed, step and place alone."""

import pytest
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical
from sparsebnn.training import Batch, Objective, Settings
from sparsebnn.training.augmentation import Crop, Cutout, Flip, Mixup, RowNoise, Shift, Transform
from sparsebnn.training.batches import Mixed
from training.runs import distance, fit, make_data, make_network, parameters, same, stopped_and_resumed

X, Y = make_data("conv", rows=20)
ALL = [Crop(2), Flip(), Cutout(3)]


def noise(rows=(0, 20), seed=1, step=0):
    return RowNoise(torch.tensor(seed), torch.tensor(step), rows, torch.float64)


def batch(x=X):
    return Batch(x, Y[: len(x)], torch.ones(len(x)), torch.tensor(float(len(x))))


def test_noise_belongs_to_rows():
    """The same numbers in a slice; all different between rows, steps, seeds and calls; uniform."""
    whole, part, other = noise(), noise((5, 9)), noise(step=1)
    for shape in ((1,), (2, 3), (5000,)):
        drawn, some = whole.uniform((20, *shape)), part.uniform((4, *shape))
        assert torch.equal(drawn[5:9], some)
        assert len(drawn.unique()) >= 0.9 * drawn.numel()
        assert not torch.equal(drawn, other.uniform((20, *shape)))
    many = noise((0, 5000)).uniform((5000, 4))
    assert float(many.mean()) == pytest.approx(0.5, abs=4 / (12 * 20000) ** 0.5)
    assert float(noise((0, 5000)).normal((5000, 4)).std()) == pytest.approx(1.0, abs=4 / 40000**0.5)
    counts = torch.bincount(noise((0, 5000)).integers((5000,), 5))
    assert counts.shape == (5,)
    assert (
        float(((counts - 1000.0) ** 2 / 1000.0).sum()) < 18.5
    )  # chi-square, 4 degrees of freedom: p = 0.001
    with pytest.raises(InvalidInput, match="shape"):
        whole.uniform((3,))


def test_shifts_move_pixels():
    """Against a padded copy, cut at the drawn place."""
    moves = noise().integers((20, 2), 5) - 2
    padded = torch.nn.functional.pad(X, (2, 2, 2, 2))
    for change in (Shift(2), Crop(2)):
        moved = change(batch(), noise()).x
        for i, (down, right) in enumerate(moves.tolist()):
            assert torch.equal(moved[i], padded[i, :, 2 - down : 8 - down, 2 - right : 8 - right])


def test_flips_cutouts_and_mixtures():
    flipped = Flip()(batch(), noise()).x
    turned = noise().uniform((20, 1, 1, 1)).flatten() < 0.5
    assert 0 < int(turned.sum()) < 20
    assert torch.equal(flipped[turned], X[turned].flip(-1))
    assert torch.equal(flipped[~turned], X[~turned])
    assert torch.equal(Flip(0.0)(batch(), noise()).x, X)

    holes = Cutout(3)(batch(torch.ones(20, 1, 6, 6)), noise()).x == 0
    assert {int(hole.sum()) for hole in holes} <= {4, 6, 9}
    for hole in holes[:, 0]:
        rows, columns = hole.any(1), hole.any(0)
        assert torch.equal(hole, rows[:, None] & columns[None])

    mixed = Mixup()(batch(), noise())
    share = noise().uniform((20,))
    assert isinstance(mixed.y, Mixed)
    expected = share[3] * X[3] + (1 - share[3]) * X[2]
    torch.testing.assert_close(mixed.x[3], expected)
    objective = Objective(make_network("conv"), Categorical(3), 20)
    outputs = torch.randn(20, 3, dtype=torch.float64)
    each = objective.likelihood.nll(outputs, Y)
    swapped = objective.likelihood.nll(outputs, Y.roll(1, 0))
    w = torch.rand(20)
    terms = objective.likelihood.weighted_nll(outputs, mixed.y.y, w * share)
    found = terms + objective.likelihood.weighted_nll(outputs, mixed.y.other, w * (1 - share))
    torch.testing.assert_close(found.sum(), (w * (share * each + (1 - share) * swapped)).sum())


@pytest.mark.parametrize("changes", [ALL, [*ALL, Mixup()]])
def test_replicates_resumed_runs_and_parts(changes, tmp_path):
    """Alone or among others, interrupted or not, in one go or in parts: the same images."""
    settings = Settings(2, 8, 1e-2)
    both = fit(make_network("conv"), (X, Y), settings, replicates=[3, 4], augment=changes)
    alone = fit(make_network("conv"), (X, Y), settings, replicates=[4], augment=changes)
    assert distance(parameters(alone, 0), parameters(both, 1)) < 1e-10
    plain = fit(make_network("conv"), (X, Y), settings, replicates=[4])
    assert distance(parameters(alone), parameters(plain)) > 1e-4
    resumed = stopped_and_resumed(
        make_network("conv"), (X, Y), settings, tmp_path, 4, replicates=[3, 4], augment=changes
    )
    assert same(parameters(resumed), parameters(both))
    parts = Settings(2, 8, 1e-2, accumulate=2)
    if changes is ALL:
        pieces = fit(make_network("conv"), (X, Y), parts, replicates=[3, 4], augment=changes)
        assert distance(parameters(pieces), parameters(both)) < 1e-10
    else:
        with pytest.raises(InvalidInput, match="augment"):
            fit(make_network("conv"), (X, Y), parts, augment=changes)


def test_any_transform():
    """Drawn with torch's generator, which is left alone; the same for a replicate alone."""

    def brighter(x):
        return x * (0.5 + torch.rand(1, dtype=x.dtype))

    settings = Settings(1, 8, 1e-2)
    network = make_network("conv")
    before = torch.get_rng_state()
    runs = [
        fit(network, (X, Y), settings, replicates=seeds, augment=Transform(brighter))
        for seeds in ([3, 4], [4])
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert distance(parameters(runs[0], 1), parameters(runs[1], 0)) < 1e-10
    with pytest.raises(InvalidInput, match="augment"):
        fit(make_network("conv"), (X, Y), settings, augment=Transform(brighter), mode="compiled")


def test_refusals():
    for change in (Shift(1), Flip(), Cutout(2)):
        with pytest.raises(InvalidInput, match="images"):
            change(batch(torch.zeros(20, 4)), noise())
    for bad in (lambda: Shift(0), lambda: Flip(2.0), lambda: Cutout(0), lambda: Transform(3)):
        with pytest.raises(InvalidInput):
            bad()
    with pytest.raises(InvalidInput, match="augment"):
        fit(make_network("conv"), (X, Y), Settings(1, 8), augment=[3])
