"""Data that are read in batches train as data in memory do, where the source allows it."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.likelihoods import Categorical, PerPosition
from sparsebnn.random.noise import permuted, seed_tensor
from sparsebnn.training import Settings, streams
from training.runs import Halt, Stop, distance, fit, history, make_data, make_network, parameters, same

X, Y = make_data(rows=30)
SETTINGS = Settings(3, 8, 1e-2)


class Items(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


class Endless(IterableDataset):
    """The rows again and again."""

    def __iter__(self):
        while True:
            yield from zip(X, Y)


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "y.npy", Y.numpy())
    return tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")


@pytest.mark.parametrize("replicates", [1, 2])
def test_random_access_gives_the_numbers_of_data_in_memory(mapped, replicates):
    expected = fit(make_network(), (X, Y), SETTINGS, replicates=replicates)
    for data in (mapped, Items(), TensorDataset(X, Y)):
        run = fit(make_network(), data, SETTINGS, replicates=replicates, likelihood=Categorical(3))
        assert same(parameters(run), parameters(expected))
        assert history(run) == history(expected)


def test_weights_bytes_and_unshuffled_rows(tmp_path):
    pixels = (torch.rand(30, 4) * 255).to(torch.uint8)
    weight = torch.rand(30)
    np.save(tmp_path / "x.npy", pixels.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings = Settings(2, 8, 1e-2, shuffle=False)
    expected = fit(make_network(), (pixels, Y, weight), settings)
    run = fit(make_network(), (mapped, Y, weight), settings, likelihood="categorical")
    assert same(parameters(run), parameters(expected))


def test_a_resumed_stream_goes_on_with_the_same_rows(mapped, tmp_path):
    """Stopped in the middle of an epoch; other data are refused."""
    options = {"folder": tmp_path / "run", "checkpoint_seconds": 0.0, "replicates": 2}
    whole = fit(make_network(), mapped, SETTINGS, replicates=2)
    with pytest.raises(Halt):
        fit(make_network(), mapped, SETTINGS, callbacks=[Stop(6)], **options)
    resumed = fit(make_network(), mapped, SETTINGS, resume=True, **options)
    assert same(parameters(resumed), parameters(whole))
    other = (np.array(mapped[0]) + 1.0).astype(np.float64)
    np.save(tmp_path / "other.npy", other)
    changed = np.load(tmp_path / "other.npy", mmap_mode="r")
    with pytest.raises(sparsebnn.training.CheckpointError, match="inputs or weights"):
        fit(make_network(), (changed, mapped[1]), SETTINGS, resume=True, **options)


def test_a_loader_gives_its_batches_to_all(caplog, tmp_path):
    """Unshuffled it is the order of the rows; the last batch is filled up."""
    expected = fit(make_network(), (X, Y), Settings(2, 8, 1e-2, shuffle=False), replicates=2)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    with caplog.at_level(logging.WARNING, "sparsebnn"):
        run = fit(
            make_network(),
            loader,
            Settings(2, 8, 1e-2),
            replicates=2,
            likelihood=Categorical(3),
            folder=tmp_path,
        )
    assert same(parameters(run), parameters(expected))
    assert "all replicates see the same batches" in caplog.text
    assert "a resumed run continues" in caplog.text


def test_an_endless_stream_has_epochs_of_n_rows():
    run = fit(make_network(), Endless(), Settings(2, 10, 1e-2), likelihood=Categorical(3), n_data=30)
    expected = fit(make_network(), (X, Y), Settings(2, 10, 1e-2, shuffle=False))
    assert same(parameters(run), parameters(expected))


def test_refusals():
    one, form = make_network(), Categorical(3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    bad = X.clone()
    bad[20, 1] = torch.nan
    for match, data, settings, options in (
        ("n_data", Endless(), SETTINGS, {}),
        ("n_data", (X, Y), SETTINGS, {"n_data": 12}),
        ("n_data", loader, SETTINGS, {"n_data": 12}),
        ("batch_size", loader, Settings(2, 9), {}),
        ("likelihood", Items(), SETTINGS, {"likelihood": "categorical"}),
        ("shift", Items(), Settings(2, 8, shift=1), {}),
        ("x", TensorDataset(bad, Y), SETTINGS, {}),
        ("data", TensorDataset(X), SETTINGS, {}),
        ("data", [1, 2, 3, 4], SETTINGS, {}),
    ):
        with pytest.raises(InvalidInput, match=f"'{match}'"):
            fit(one, data, settings, **{"likelihood": form, **options})


class Several(nn.Module):
    """Two inputs by position or by name; a dict of outputs."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.left = sparsebnn.Linear(4, 3, dtype=torch.float64)
        self.right = sparsebnn.Linear(2, 3, dtype=torch.float64)
        self.named = named

    def forward(self, left, right):
        total = self.left(left) + self.right(right)
        return {"logits": total} if self.named else total


class OfLogits(Categorical):
    def nll(self, outputs, y):
        return super().nll(outputs["logits"], y)


def test_several_inputs_and_a_dict_of_outputs():
    """In memory, from a data set, alone and as two replicates: one result."""
    right = torch.randn(30, 2, dtype=torch.float64)

    class Pairs(Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, i):
            return {"left": X[i], "right": right[i]}, Y[i]

    runs = [
        fit(Several(False), ((X, right), Y), SETTINGS, likelihood=Categorical(3)),
        fit(Several(True), ({"right": right, "left": X}, Y), SETTINGS, likelihood=OfLogits(3)),
        fit(Several(True), Pairs(), SETTINGS, likelihood=OfLogits(3)),
        fit(Several(True), Pairs(), SETTINGS, likelihood=OfLogits(3), replicates=2),
    ]
    for run in runs:
        assert distance(parameters(run, 0), parameters(runs[0], 0)) < 1e-12
    network = runs[1].network
    with torch.no_grad():
        outputs, kl = sparsebnn.forward_with_kl(network, X, right=right)
        parts = [layer.forward_with_kl(x)[1] for layer, x in ((network.left, X), (network.right, right))]
    assert outputs["logits"].shape == (30, 3)
    torch.testing.assert_close(kl, sum(parts))


def test_a_target_for_every_position():
    """As many rows of one position each give the same loss; positions to ignore have none."""
    words = torch.randint(0, 3, (12, 5), generator=torch.Generator().manual_seed(1))
    ignored = words.clone()
    ignored[:, 3:] = -100
    x = torch.randn(12, 5, 4, dtype=torch.float64)
    outputs = torch.randn(12, 5, 3, dtype=torch.float64)
    tokens, pixels = PerPosition(Categorical(3)), PerPosition(Categorical(3), axis=1)
    expected = (
        Categorical(3).nll(outputs[:, :3].reshape(-1, 3), words[:, :3].reshape(-1)).reshape(12, 3).sum(1)
    )
    torch.testing.assert_close(tokens.nll(outputs, tokens.prepare(ignored)), expected)
    torch.testing.assert_close(pixels.nll(outputs.movedim(-1, 1), ignored), expected)
    run = fit(make_network(), (x, ignored), Settings(30, 4, 3e-2), likelihood=tokens, replicates=2)
    assert run.history[-1].loss[0] < run.history[0].loss[0]
    for bad in (words[:, 0], words + 3, torch.full((12, 5), -100)):
        with pytest.raises(InvalidInput):
            tokens.prepare(bad)


def test_an_error_while_reading_ends_training():
    class Breaks(Items):
        def __getitem__(self, i):
            if i == 17:
                raise OSError("the disk is gone")
            return super().__getitem__(i)

    with pytest.raises(OSError, match="the disk is gone"):
        fit(make_network(), Breaks(), SETTINGS, likelihood=Categorical(3))


def test_long_orders_need_no_list(monkeypatch, mapped):
    """Every row once an epoch, for each replicate another order."""
    for count in (1, 2, 7, 1000, 4097):
        places = torch.arange(count).expand(2, -1)
        drawn = permuted(seed_tensor([3, 4]), 5, 1, places, count)
        assert torch.equal(drawn.sort(1).values, places)
        if count > 7:
            assert not torch.equal(drawn[0], drawn[1])
            assert float((drawn[0].double() - places[0]).abs().mean()) == pytest.approx(count / 3, rel=0.15)
    monkeypatch.setattr(streams, "_WHOLE_ORDER", 10)
    seen = []
    fetch = streams.Arrays.fetch
    monkeypatch.setattr(streams.Arrays, "fetch", lambda self, i: seen.extend(i.tolist()) or fetch(self, i))
    fit(make_network(), mapped, Settings(1, 10, 1e-2))
    assert sorted(seen[1:]) == list(range(30))  # the first is the example


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_a_file_become_arrays(kind, tmp_path):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({f"c{j}": X[:, j].numpy() for j in range(4)} | {"y": Y.numpy()})
    file = tmp_path / f"rows.{kind}"
    frame.write_parquet(file) if kind == "parquet" else frame.write_ipc(file)
    x, y = sparsebnn.data.memory_mapped(file, ["c2", "c0"], "y", tmp_path)
    np.testing.assert_array_equal(x, X[:, [2, 0]].float().numpy())
    np.testing.assert_array_equal(y, Y.numpy())
    assert isinstance(x, np.memmap)
    with pytest.raises(InvalidInput, match="column"):
        sparsebnn.data.memory_mapped(file, ["c9"], "y", tmp_path)
    missing = tmp_path / "missing.parquet"
    frame.with_columns(polars.lit(None, polars.Float64).alias("c0")).write_parquet(missing)
    with pytest.raises(InvalidInput, match="missing"):
        sparsebnn.data.memory_mapped(missing, ["c0"], "y", tmp_path)
