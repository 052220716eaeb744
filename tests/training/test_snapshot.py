"""The posterior before the refit: the same as if training had ended there."""

import dataclasses
import errno
import os

import pytest
import torch

from sparsebnn.checks import InvalidInput
from sparsebnn.nn.description import density
from sparsebnn.training import (
    BeforeRefit,
    Callback,
    CheckpointError,
    Cosine,
    CutAtRefit,
    Settings,
    checkpoint,
)
from training.runs import Halt, Stop, fit, make_data, make_network

SETTINGS = Settings(epochs=6, batch_size=8, learning_rate=1e-2, refit=0.5, target_density=0.3)


@pytest.mark.parametrize("replicates", [1, 3])
def test_it_is_where_a_shorter_training_ends(replicates):
    """Three epochs of six, then a refit: before it the network is that of three epochs without one."""
    kept = BeforeRefit()
    run = fit(make_network(), make_data(), SETTINGS, replicates=replicates, callbacks=[kept])
    assert (kept.taken, kept.epoch) == (True, 3)
    short = dataclasses.replace(SETTINGS, epochs=3, refit=0.0, schedule=Cosine())
    end = fit(make_network(), make_data(), short, replicates=replicates)
    for ours, theirs, later in zip(kept.networks, end.networks, run.networks):
        for (name, value), wanted in zip(ours.state_dict().items(), theirs.state_dict().values()):
            torch.testing.assert_close(value, wanted, rtol=0, atol=0, msg=name)
        assert density(later).overall == pytest.approx(0.3, abs=0.02)
        logits = [p for n, p in ours.named_parameters() if n.endswith("inclusion_logit")]
        assert max(float(p.detach().abs().max()) for p in logits) < 30.0


def test_without_a_refit_there_is_nothing():
    kept = BeforeRefit()
    fit(make_network(), make_data(), dataclasses.replace(SETTINGS, refit=0.0), callbacks=[kept])
    assert not kept.taken
    assert kept.networks == []
    with pytest.raises(RuntimeError, match="No refit began in this run"):
        kept.network(0)


def test_a_resumed_run_still_has_it(tmp_path):
    """Interrupted in the refit and resumed: the posterior before it comes from its file."""
    whole = BeforeRefit()
    fit(make_network(), make_data(), SETTINGS, replicates=2, callbacks=[whole])
    options = {"replicates": 2, "folder": tmp_path, "checkpoint_seconds": 0.0}
    stop = Stop(5, "on_epoch_end")
    with pytest.raises(Halt):
        fit(make_network(), make_data(), SETTINGS, callbacks=[BeforeRefit(tmp_path / "b"), stop], **options)
    again = BeforeRefit(str(tmp_path / "b"))
    fit(make_network(), make_data(), SETTINGS, callbacks=[again], resume=True, **options)
    assert again.epoch == 3
    for ours, theirs in zip(again.networks, whole.networks):
        for value, wanted in zip(ours.state_dict().values(), theirs.state_dict().values()):
            assert torch.equal(value, wanted)


def test_a_resumed_run_that_has_not_kept_it_says_so(tmp_path, caplog):
    options = {"replicates": 2, "folder": tmp_path, "resume": True}
    fit(make_network(), make_data(), SETTINGS, callbacks=[BeforeRefit()], **options)
    assert caplog.text == ""
    late = BeforeRefit()
    fit(make_network(), make_data(), SETTINGS, callbacks=[late], **options)
    assert "the posterior before it was not kept. Give BeforeRefit(path) from the start" in caplog.text
    for ask in (lambda: late.networks, lambda: late.network(0)):
        with pytest.raises(RuntimeError, match=r"was not kept\. Give BeforeRefit\(path\)"):
            ask()


def test_the_posterior_of_another_run_does_not_stand_in_when_the_write_fails(tmp_path, caplog, monkeypatch):
    """The write is tried again; while it fails the file of an earlier run is not taken for this one's."""
    path, seen = tmp_path / "before", []
    fit(make_network(), make_data(seed=1), SETTINGS, callbacks=[BeforeRefit(path)])

    class Look(Callback):
        def on_epoch_end(self, run, epoch):
            seen.append(path.exists())

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = BeforeRefit(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        patch.setattr(kept, "on_train_end", lambda run: None)
        fit(make_network(), make_data(), SETTINGS, callbacks=[kept, Look()])
    assert seen == [True, True, False, False, False, False]
    assert "The posterior before the refit is kept in memory only" in caplog.text
    BeforeRefit.on_train_end(kept, kept._run)
    stored, header = checkpoint.read(path)
    assert header == {"epoch": 3, "seeds": [0]}
    values = {f"network.{name}": value for name, value in kept.network(0).state_dict().items()}
    assert all(torch.equal(stored[name][0], values[name]) for name in stored)


@pytest.mark.parametrize("other", [{"replicates": [7, 8]}, {"replicates": 3}, {"name": "c"}])
def test_a_posterior_of_another_run_is_refused(tmp_path, other):
    """Other seeds, another number of them, or a run's own checkpoint."""
    name = other.get("name", "b")
    first = {"replicates": other.get("replicates", 2), "folder": tmp_path / "first"}
    fit(make_network(), make_data(), SETTINGS, callbacks=[BeforeRefit(tmp_path / "b")], **first)
    (tmp_path / "c").write_bytes(next((tmp_path / "first").glob("*.safetensors")).read_bytes())
    own = {"replicates": 2, "folder": tmp_path / "own", "resume": True}
    fit(make_network(), make_data(), SETTINGS, **own)
    with pytest.raises(CheckpointError, match="is not of this run, or not from before its refit"):
        fit(make_network(), make_data(), SETTINGS, callbacks=[BeforeRefit(tmp_path / name)], **own)


def test_a_late_cut_keeps_the_likeliest_weights():
    """One share per replicate; before the cut it is training without any target, weight by weight."""
    settings = dataclasses.replace(SETTINGS, target_density=None)
    kept, shares = BeforeRefit(), [0.2, 0.5, 1.0]
    run = fit(make_network(), make_data(), settings, replicates=3, callbacks=[kept, CutAtRefit(shares)])
    free = fit(make_network(), make_data(), dataclasses.replace(settings, epochs=3, refit=0.0), replicates=3)
    for before, alone, after, share in zip(kept.networks, free.networks, run.networks, shares):
        logits = [
            torch.cat([p.detach().flatten() for n, p in each.named_parameters() if n.endswith("_logit")])
            for each in (before, alone, after)
        ]
        assert torch.equal(logits[0], logits[1])
        count = round(share * len(logits[0]))
        wanted = torch.zeros(len(logits[0]), dtype=torch.bool)
        wanted[logits[0].topk(count).indices] = True
        assert torch.equal(logits[2] > 0, wanted)


PHASED = Settings(
    epochs=10, batch_size=8, learning_rate=1e-2, warmup=0.5, free_fraction=0.3, refit=0.2, target_density=0.3
)


def test_the_first_phase_is_a_training_of_its_own():
    """Three epochs of ten: the same numbers as three epochs with ordinary settings and no target."""
    kept = BeforeRefit()
    run = fit(make_network(), make_data(), PHASED, replicates=2, callbacks=[kept])
    own = Settings(epochs=3, batch_size=8, learning_rate=1e-2, warmup=0.5)
    alone = fit(make_network(), make_data(), own, replicates=2)
    assert kept.epoch == 3
    for ours, theirs, last in zip(kept.networks, alone.networks, run.networks):
        for (name, value), wanted in zip(ours.state_dict().items(), theirs.state_dict().values()):
            torch.testing.assert_close(value, wanted, rtol=0, atol=0, msg=name)
        assert density(last).overall == pytest.approx(0.3, abs=0.02)
    before, after = (run.history[e].density for e in (2, 9))
    assert min(before) > max(after)


def test_every_phase_has_a_schedule_of_its_own():
    rates = [PHASED.rate_factor("", epoch) for epoch in range(10)]
    assert rates[:3] == [Cosine().factor(e, 3) for e in range(3)]
    assert rates[3:8] == [Cosine().factor(e, 5) for e in range(5)]
    assert rates[8:] == [Cosine().factor(e, 2) for e in range(2)]
    assert PHASED.rate_factor("inclusion_logit", 8) == 0.0
    assert [PHASED.warmup_factor(epoch) for epoch in (0, 1, 5)] == pytest.approx([2 / 3, 1.0, 1.0])
    hot = dataclasses.replace(PHASED, refit_temperature_factor=5.0, temperature=0.1)
    assert [hot.beta(epoch) for epoch in (0, 4, 7, 8, 9)] == pytest.approx([0.2 / 3, 0.1, 0.1, 0.5, 0.5])


def test_phases_and_cuts_must_fit():
    for name, value in (
        ("refit_temperature_factor", 0.0),
        ("free_fraction", 0.8),
        ("target_density", None),
    ):
        with pytest.raises(InvalidInput, match=f"'{name}' of Settings"):
            dataclasses.replace(PHASED, **{name: value})
    with pytest.raises(InvalidInput, match="'density' of CutAtRefit"):
        CutAtRefit(1.5)
    free = dataclasses.replace(SETTINGS, target_density=None)
    with pytest.raises(InvalidInput, match=r"one per replicate \(1\)"):
        fit(make_network(), make_data(), free, callbacks=[CutAtRefit([0.1, 0.2])])
    with pytest.raises(InvalidInput, match="no target_density"):
        fit(make_network(), make_data(), SETTINGS, callbacks=[CutAtRefit(0.1)])
