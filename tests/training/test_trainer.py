"""trainer.py: runs that are interrupted, killed, out of disk or not alone in their folder lose nothing."""

import dataclasses
import errno
import json
import logging
import os
import pathlib
import pickle
import shutil
import signal
import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsebnn
from sparsebnn.training import (
    BeforeRefit,
    Callback,
    CheckpointError,
    Interrupted,
    JsonLog,
    checkpoint,
)
from sparsebnn.training.trainer import Trainer
from training.runs import (
    DATA,
    FILE,
    LOCK,
    NETWORK,
    OPTIONS,
    SHORT,
    Settings,
    fit,
    history,
    make_network,
    parameters,
    same,
)


class Do(Callback):
    """Calls ``action(run)`` in a hook, in the epoch given or always."""

    def __init__(self, hook, action, epoch=None):
        def call(run, *_):
            if epoch is None or run.epoch == epoch:
                action(run)

        setattr(self, hook, call)


@pytest.fixture(autouse=True)
def _heard():
    """Python's own handler, also where the tests run in the background of a shell, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(number=signal.SIGINT, times=1):
    for _ in range(times):
        os.kill(os.getpid(), number)


def interrupt(times=1, number=signal.SIGINT):
    """A callback that interrupts after the first epoch."""
    return Do("on_epoch_end", lambda run: send(number, times), epoch=1)


# --- interruption -----------------------------------------------------------------------------------


def interrupted(**options):
    """The exception of an interrupted training."""
    options = {"callbacks": [interrupt()], **OPTIONS, **options}
    with pytest.raises(Interrupted) as error:
        fit(NETWORK, DATA, SHORT, **options)
    return error.value


def check_usable(run, epochs=1):
    """Networks, likelihoods and history of an unfinished run are those of any run."""
    assert len(run.history) == epochs
    assert len(run.networks) == len(run.likelihoods) == len(run.seeds)
    for network, likelihood in zip(run.networks, run.likelihoods):
        probs = sparsebnn.predict(network, DATA[0], likelihood, n_draws=3).probs
        torch.testing.assert_close(probs.sum(1), torch.ones_like(probs[:, 0]))


@pytest.mark.parametrize(
    ("where", "times", "advice"),
    [
        ("no folder", 1, "no folder was given"),
        ("folder", 2, "The last steps were not saved"),
        ("full disk", 1, "could not be saved"),
    ],
)
def test_an_interrupt_that_saves_nothing_keeps_the_run(where, times, advice, tmp_path, monkeypatch):
    """Without a folder, at the second interrupt, on a full disk: the exception has the networks."""
    seen = {}
    keep = Do("on_epoch_end", lambda run: seen.update(parameters(run)), epoch=1)
    if where == "full disk":
        monkeypatch.setattr(os, "fsync", full)
    error = interrupted(folder=None if where == "no folder" else tmp_path, callbacks=[keep, interrupt(times)])
    assert "Interrupted in epoch 1. " in str(error)
    assert advice in str(error)
    check_usable(error.run)
    assert same(parameters(error.run), seen)
    assert os.listdir(tmp_path) == ([] if where == "no folder" else [LOCK])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_checkpoint_and_a_hint(tmp_path, whole, number):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    error = interrupted(folder=tmp_path, callbacks=[interrupt(number=number)])
    assert f"Saved to {tmp_path / FILE}; call train again with resume=True" in str(error)
    check_usable(error.run)
    assert isinstance(error, KeyboardInterrupt)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert sorted(os.listdir(tmp_path)) == [LOCK, FILE]
    # In the same process, while the exception and its run are still there.
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))
    assert history(run) == history(whole)


class Impatient(nn.Module):
    """Passes its input on; the n-th time it sends two interrupts."""

    def __init__(self):
        super().__init__()
        self.left = 0

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            send(times=2)
        return x


@pytest.mark.parametrize("replicates", [1, 2])
def test_a_second_interrupt_within_a_step(replicates, tmp_path):
    """The forward pass is left in the middle; the run and the folder are usable all the same."""
    network = nn.Sequential(make_network(), Impatient())
    start = Do("on_train_start", lambda run: setattr(run.replicates.objective.network[1], "left", 5))
    options = {"replicates": replicates, "folder": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(Interrupted, match="resume=True to continue from the last checkpoint") as error:
        fit(network, DATA, SHORT, callbacks=[start], **options)
    check_usable(error.value.run)
    run = fit(network, DATA, SHORT, resume=True, **options)
    assert same(parameters(run), parameters(fit(network, DATA, SHORT, replicates=replicates)))


def test_an_interrupt_while_the_last_state_is_saved(tmp_path, monkeypatch, whole):
    real = os.replace

    def replace(*paths):
        send()
        real(*paths)

    monkeypatch.setattr(os, "replace", replace)
    error = interrupted(folder=tmp_path, callbacks=[])
    assert str(error).startswith(f"Interrupted in epoch 3. Saved to {tmp_path / FILE}")
    assert same(parameters(error.run), parameters(whole))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ignored_signals_stay_ignored(number, whole):
    """As under nohup, or in the background of a script."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        run = fit(NETWORK, DATA, SHORT, callbacks=[interrupt(number=number)], **OPTIONS)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert same(parameters(run), parameters(whole))


def test_training_in_a_thread_leaves_signals_alone(whole):
    """Handlers belong to the main thread."""
    runs = []
    thread = threading.Thread(target=lambda: runs.append(fit(NETWORK, DATA, SHORT, **OPTIONS)))
    thread.start()
    thread.join()
    assert same(parameters(runs[0]), parameters(whole))


# --- other ends -------------------------------------------------------------------------------------


class Mistake(Exception):
    pass


class Own(Exception):
    run = "own"


def fail(run, error=Mistake):
    raise error("mine")


@pytest.mark.parametrize("hook", ["on_train_start", "on_epoch_end", "on_checkpoint", "on_train_end"])
def test_an_exception_of_a_callback_carries_the_run(hook, tmp_path, whole):
    with pytest.raises(Mistake, match=r"^mine$") as error:
        fit(NETWORK, DATA, SHORT, callbacks=[Do(hook, fail)], folder=tmp_path, **OPTIONS)
    check_usable(error.value.run, epochs={"on_train_start": 0, "on_epoch_end": 1}.get(hook, 3))
    if hook == "on_train_end":
        assert same(parameters(error.value.run), parameters(whole))


def test_an_exception_keeps_a_run_of_its_own():
    with pytest.raises(Own) as error:
        fit(NETWORK, DATA, SHORT, callbacks=[Do("on_epoch_end", lambda run: fail(run, Own))])
    assert error.value.run == "own"


def test_an_exception_with_a_run_can_leave_its_process():
    """As joblib's workers send it; what was compiled stays behind."""
    error = interrupted()
    error.run._engine._advance = lambda: None
    there = pickle.loads(pickle.dumps(error))
    assert isinstance(there, Interrupted)
    assert str(there) == str(error)
    assert same(parameters(there.run), parameters(error.run))
    assert len(there.run.networks) == 2


def test_seconds_of_an_unfinished_epoch_count(tmp_path, monkeypatch):
    """A checkpoint within an epoch has the seconds so far; in the end they are those of the epochs."""
    seen, real = [], Trainer._checkpoint

    def save(self):
        seen.append((self._run.epoch, self.position, self._run.train_seconds))
        real(self)

    monkeypatch.setattr(Trainer, "_checkpoint", save)
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, checkpoint_seconds=0.0)
    assert seen[0][:2] == (0, 1)
    assert 0.0 < seen[0][2] < run.train_seconds
    assert run.train_seconds == pytest.approx(sum(epoch.seconds for epoch in run.history), abs=1e-3)


# --- two in one folder ------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_in_a_folder_is_refused(tmp_path, whole, monkeypatch, resume):
    """At once, in the same process or thread; the first one does not notice."""
    tried = []

    def again():
        with pytest.raises(CheckpointError, match="'folder' of train must be used by one training run"):
            fit(NETWORK, DATA, SHORT, folder=tmp_path, resume=resume, **OPTIONS)
        tried.append(resume)

    def meanwhile(run):
        partial = tmp_path / f".{FILE}.0123abcd"
        partial.touch()
        before = (tmp_path / FILE).read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr("sparsebnn.training.loop.Replicates", None)  # before any work
            again()
            thread = threading.Thread(target=again)
            thread.start()
            thread.join()
        assert (tmp_path / FILE).read_bytes() == before
        assert partial.exists()
        partial.unlink()

    options = {"folder": tmp_path, "checkpoint_seconds": 0.0, **OPTIONS}
    run = fit(NETWORK, DATA, SHORT, callbacks=[Do("on_epoch_end", meanwhile, epoch=1)], **options)
    assert len(tried) == 2
    assert same(parameters(run), parameters(whole))
    assert sorted(os.listdir(tmp_path)) == [LOCK, FILE]


def test_checkpoints_without_safetensors_are_refused_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    begun = []
    with pytest.raises(ImportError, match=r"^Checkpoints need 'safetensors'"):
        fit(NETWORK, DATA, SHORT, folder=tmp_path, callbacks=[Do("on_train_start", begun.append)])
    assert begun == []


# --- a full disk ------------------------------------------------------------------------------------

# A replicate that stops, a refit, a log: all that a run may write.
ALL = Settings(epochs=4, batch_size=8, learning_rate=1e-2, refit=0.5, target_density=0.3)
STOPS = {"replicates": 2, "per_replicate": {"learning_rate": [1e-2, 1e200]}}


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


class Disk(Callback):
    """Counts what writes to the disk once training has started, and lets the n-th fail, or all from there."""

    def __init__(self, patch, at=0, forever=False):
        self.at, self.forever, self.count, self.on = at, forever, 0, False
        real = pathlib.Path.open

        def opened(path, mode="r", *arguments, **options):
            if set(mode) & set("wxa"):
                self.use()
            return real(path, mode, *arguments, **options)

        patch.setattr(pathlib.Path, "open", opened)
        for name in ("fsync", "replace", "link"):
            patch.setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, real):
        def call(*arguments, **options):
            self.use()
            return real(*arguments, **options)

        return call

    def use(self):
        self.count += self.on
        if self.on and (self.count == self.at or (self.forever and self.count > self.at > 0)):
            full()

    def on_train_start(self, run):
        self.on = True


def everything(folder, *first):
    """A run that writes all there is to write, and its posterior before the refit."""
    kept = BeforeRefit(folder / "before")
    callbacks = [*first, JsonLog(folder / "log.jsonl"), kept]
    options = {"folder": folder, "checkpoint_seconds": 0.0, "callbacks": callbacks, **STOPS}
    run = fit(make_network(), DATA, ALL, **options)
    return run, kept


def check_files(folder):
    """All files are whole, and nothing else is left."""
    for path in folder.iterdir():
        if path.suffix == ".safetensors" or path.name == "before":
            checkpoint.read(path)
        elif path.name == "log.jsonl":
            assert path.read_bytes()[-1:] in (b"", b"\n")
            assert all(json.loads(line)["event"] for line in path.read_text().splitlines())
        else:
            assert path.name == LOCK


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run on a sound disk, and how often it writes."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        run, kept = everything(tmp_path_factory.mktemp("sound"), disk)
    assert disk.count > 40
    return run, kept, disk.count


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize(
    "share", [0.0, 0.1, 0.5, 1.0, *(pytest.param(n / 40, marks=pytest.mark.slow) for n in range(40))]
)
def test_a_write_that_fails(tmp_path, undisturbed, monkeypatch, caplog, share, forever):
    """The n-th, or the n-th and all that follow: the trained run is returned all the same."""
    monkeypatch.setattr(checkpoint, "RETRY_SECONDS", 0.0)
    wanted, kept, writes = undisturbed
    disk = Disk(monkeypatch, 1 + round(share * (writes - 1)), forever)
    run, ours = everything(tmp_path, disk)
    assert disk.count >= disk.at
    assert same(parameters(run), parameters(wanted))
    # The replicate that stopped has losses of NaN, and so has its posterior.
    assert repr(history(run)) == repr(history(wanted))
    assert same(dict(ours.network(0).state_dict()), dict(kept.network(0).state_dict()))
    check_files(tmp_path)
    # One line for each cause and its consequence, however often it is tried.
    warned = [m for m in map(logging.LogRecord.getMessage, caplog.records) if "could not be written" in m]
    assert warned
    assert len(set(warned)) == len(warned) <= 5


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_after_a_full_disk_the_run_resumes(tmp_path, whole, monkeypatch, caplog, fails):
    """The last good checkpoint is intact and usable, nothing else is left."""
    calls, real = [], getattr(os, fails)

    def at_last(*arguments):
        calls.append(arguments)
        return full() if len(calls) > 4 else real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, at_last)
        run = fit(NETWORK, DATA, SHORT, folder=tmp_path, checkpoint_seconds=0.0, **OPTIONS)
    assert len(calls) == 6  # the one that fails, a pause, and the last
    assert same(parameters(run), parameters(whole))
    first, last = [record.getMessage() for record in caplog.records]
    assert "Training continues and tries again." in first
    assert "The trained run is returned, but its last state is not in the folder." in last
    assert sorted(os.listdir(tmp_path)) == [LOCK, FILE]
    _, header = checkpoint.read(tmp_path / FILE)
    assert (header["epoch"], header["position"]) == (1, 1)
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))


def test_a_write_that_fails_is_tried_again(tmp_path, monkeypatch):
    """After ten seconds, not at every step."""
    clock, failed, saved, real = [0], [], [], os.fsync
    monkeypatch.setattr(checkpoint, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    def recovers(number):
        if clock[0] < 15:
            failed.append(clock[0])
            full()
        real(number)

    def tick(run):
        clock[0] += 1

    monkeypatch.setattr(os, "fsync", recovers)
    callbacks = [Do("on_epoch_end", tick), Do("on_checkpoint", lambda run: saved.append(clock[0]))]
    settings = dataclasses.replace(SHORT, epochs=22)
    fit(make_network(), DATA, settings, folder=tmp_path, checkpoint_seconds=0.0, callbacks=callbacks)
    assert failed == [0, 10]
    assert sorted(set(saved)) == [20, 21, 22]


def test_without_hard_links_the_last_good_checkpoint_is_copied(tmp_path, monkeypatch):
    """Whole: a copy that fails leaves nothing under that name."""

    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    everything(tmp_path / "copied")
    assert (tmp_path / "copied" / "checkpoint-before-step-1.safetensors").exists()
    check_files(tmp_path / "copied")

    def half(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:100])
        full()

    monkeypatch.setattr(shutil, "copyfile", half)
    everything(tmp_path / "failed")
    assert not (tmp_path / "failed" / "checkpoint-before-step-1.safetensors").exists()
    check_files(tmp_path / "failed")


# --- kill -9 ----------------------------------------------------------------------------------------


def killed_at(folder, at, where):
    """Train in a process that kills itself at its n-th checkpoint: in the file, or around its renaming."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
        child = os.fork()
    if child == 0:
        count, real = 0, {"fsync": os.fsync, "replace": os.replace}

        def fsync(number):
            nonlocal count
            count += 1
            if count == at and where == "within":
                os.ftruncate(number, os.fstat(number).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            real["fsync"](number)

        def replace(*paths):
            if count == at and where == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            real["replace"](*paths)
            if count == at and where == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync, os.replace = fsync, replace
        try:
            fit(NETWORK, DATA, SHORT, folder=folder, resume=True, checkpoint_seconds=0.0, **OPTIONS)
        finally:
            os._exit(3)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork") or torch.cuda.is_available(), reason="needs a plain fork")
def test_killed_while_writing(tmp_path, whole):
    """In the middle of a file, before it is renamed and after: resumed, the run ends as if nobody had."""
    partials = 0
    for at, where in [(1, "within"), (2, "before"), (2, "within"), (1, "after"), (3, "before"), (2, "after")]:
        assert os.WTERMSIG(killed_at(tmp_path, at, where)) == signal.SIGKILL
        partials += len(list(tmp_path.glob(f".{FILE}.*")))
    assert partials == 4
    run = fit(NETWORK, DATA, SHORT, folder=tmp_path, resume=True, **OPTIONS)
    assert same(parameters(run), parameters(whole))
    assert history(run) == history(whole)
    assert sorted(os.listdir(tmp_path)) == [LOCK, FILE]
