"""Heteroscedastic noise beside learned noise: on real rows, and on rows whose noise is known."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.datasets import load_diabetes

from sparsebnn import Settings, SparseBNNRegressor, mlp, train
from sparsebnn.likelihoods import Gaussian
from sparsebnn.training import Callback

NOISES = ("learned", "heteroscedastic")


def simulated(rows, seed):
    """A mean that is not linear, and noise whose std grows tenfold along the second column."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-1.0, 1.0, (rows, 3))
    mean, std = np.sin(3.0 * x[:, 0]) + x[:, 2], 0.08 * 10.0 ** ((x[:, 1] + 1.0) / 2.0)
    return x, mean, std, mean + std * rng.randn(rows)


def nll(mean, std, y):
    return -norm.logpdf(y, mean, std).mean()


def test_noise_of_a_known_function_is_learned_and_the_mean_not_worse():
    x, _, _, y = simulated(800, 0)
    new, mean, std, targets = simulated(1000, 1)
    found = {}
    for noise in NOISES:
        model = SparseBNNRegressor(random_state=0, noise=noise, replicates=1, epochs=120, n_draws=50).fit(
            x, y
        )
        found[noise] = model.predict(new, return_std=True)
        low, high = model.predict_quantiles(new, [0.05, 0.95]).T
        assert 0.86 <= np.mean((targets >= low) & (targets <= high)) <= 0.94, noise
    errors = {noise: np.sqrt(np.mean((each[0] - mean) ** 2)) for noise, each in found.items()}
    assert errors["heteroscedastic"] <= 1.05 * errors["learned"]
    # The std that is predicted has the part of not knowing the weights as well.
    assert np.corrcoef(np.log(found["heteroscedastic"][1]), np.log(std))[0, 1] > 0.95
    assert nll(*found["heteroscedastic"], targets) < nll(*found["learned"], targets) - 0.2
    assert nll(*found["heteroscedastic"], targets) < nll(mean, std, targets) + 0.15


@pytest.mark.slow
def test_real_rows_are_predicted_as_well_as_with_learned_noise():
    x, y = load_diabetes(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(y))
    kept, held = order[150:], order[:150]
    error, lost = {}, {}
    for noise in NOISES:
        model = SparseBNNRegressor(random_state=0, noise=noise, replicates=1, n_draws=50).fit(
            x[kept], y[kept]
        )
        mean, std = model.predict(x[held], return_std=True)
        error[noise], lost[noise] = np.sqrt(np.mean((y[held] - mean) ** 2)), nll(mean, std, y[held])
        low, high = model.predict_quantiles(x[held], [0.05, 0.95]).T
        # Of 150 rows, two standard errors are 0.05.
        assert 0.85 <= np.mean((y[held] >= low) & (y[held] <= high)) <= 0.95, noise
        assert model.density_ < 0.2
    assert error["heteroscedastic"] <= 1.05 * error["learned"]
    assert lost["heteroscedastic"] <= lost["learned"] + 0.01


class Switches(Callback):
    """Notes the switch of every epoch."""

    def __init__(self):
        self.found = []

    def on_epoch_end(self, run, epoch):
        self.found.append(float(run.likelihood.noise_switch))


@pytest.mark.parametrize("replicates", [1, 2])
def test_train_learns_the_means_before_the_noise_of_rows(replicates):
    x = torch.randn(60, 2)
    form, told = Gaussian(1, "heteroscedastic"), Switches()
    settings = Settings(epochs=4, batch_size=20)
    run = train(
        mlp([2, 4, 2]),
        (x, x[:, :1]),
        likelihood=form,
        settings=settings,
        replicates=replicates,
        callbacks=[told],
        device="cpu",
    )
    assert told.found == [0.0, 0.0, 1.0, 1.0]
    assert float(run.likelihood.noise_switch) == 1.0
    assert float(form.noise_switch) == 1.0  # what was given stays as it is
    assert not torch.equal(run.likelihood.raw_std, form.raw_std)


def test_noise_switched_off_is_fitted_to_the_errors_without_weighting_rows():
    """The value and the means' gradient are those of one noise level; the rows' noise has its own."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(9, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(9, 1, generator=generator, dtype=torch.float64)
    own, level = Gaussian(1, "heteroscedastic", std=0.7).double(), Gaussian(1, "learned", std=0.7).double()
    (whole,) = torch.autograd.grad(own.nll(outputs, y).sum(), outputs)
    own.noise_switch.fill_(0.0)
    torch.testing.assert_close(own.nll(outputs, y), level.nll(outputs[:, :1], y))
    split = torch.autograd.grad(own.nll(outputs, y).sum(), [outputs, own.raw_std])
    alone = torch.autograd.grad(level.nll(outputs[:, :1], y).sum(), [outputs, level.raw_std])
    torch.testing.assert_close(split[0][:, 0], alone[0][:, 0])
    torch.testing.assert_close(split[0][:, 1], whole[:, 1])
    torch.testing.assert_close(split[1], alone[1])


def test_a_resumed_run_has_the_noise_it_would_have_had(tmp_path):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    given = {"likelihood": Gaussian(1, "heteroscedastic"), "settings": Settings(epochs=6, batch_size=20)}

    class Stop(Callback):
        def on_epoch_end(self, run, epoch):
            if epoch.epoch == 4:
                raise RuntimeError

    def trained(**more):
        return train(mlp([2, 4, 2]), (x, x[:, :1]), device="cpu", **given, **more)

    whole = trained()
    with pytest.raises(RuntimeError):
        trained(folder=tmp_path, checkpoint_seconds=0.0, callbacks=[Stop()])
    resumed = trained(folder=tmp_path, resume=True)
    for one, other in zip(whole.network.state_dict().values(), resumed.network.state_dict().values()):
        assert torch.equal(one, other)
    assert torch.equal(whole.likelihood.raw_std, resumed.likelihood.raw_std)
