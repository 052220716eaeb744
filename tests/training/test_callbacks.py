"""callbacks.py: hooks in order with the right values; the line, the log."""

import dataclasses
import errno
import io
import json
import math
import re
import sys
import types
from typing import ClassVar

import pytest

from sparsebnn.training import Callback, Epoch, JsonLog, Progress, Stopped, TensorBoard, checkpoint
from sparsebnn.training.callbacks import _clock, _spread
from training.runs import SHORT, fit, make_data, make_network


class Record(Callback):
    """Every call, with what was true at the time."""

    def __init__(self):
        self.calls = []

    def on_train_start(self, run):
        self.calls.append(("start", run.epoch, len(run.history)))

    def on_epoch_end(self, run, epoch):
        assert run.history[-1] is epoch
        self.calls.append(("epoch", epoch.epoch, run.epoch))

    def on_checkpoint(self, run, path):
        assert path.exists()
        self.calls.append(("checkpoint", path.name, run.epoch))

    def on_train_end(self, run):
        self.calls.append(("end", run.epoch, len(run.history)))


def test_hooks_in_order(tmp_path):
    """Callbacks in the order given; one checkpoint where the clock asks for none."""
    record, order = Record(), []
    first, last = Callback(), Callback()
    first.on_epoch_end = lambda *_: order.append("first")
    last.on_epoch_end = lambda *_: order.append("last")
    options = {"folder": tmp_path, "checkpoint_seconds": 1e9}
    fit(make_network(), make_data(), SHORT, callbacks=[first, record, last], **options)
    epochs = [("epoch", n, n + 1) for n in range(3)]
    written = ("checkpoint", "checkpoint.safetensors", 3)
    assert record.calls == [("start", 0, 0), *epochs, written, ("end", 3, 3)]
    assert order == ["first", "last"] * 3


def test_epochs_hold_a_value_per_replicate():
    run = fit(make_network(), make_data(), SHORT, replicates=2)
    for number, epoch in enumerate(run.history):
        assert epoch.epoch == number
        assert len(epoch.loss) == len(epoch.nll) == len(epoch.kl) == len(epoch.density) == 2
        # Every batch has its share of the KL, so the sums over an epoch are those of the whole data
        # (a KL that moves within the epoch is averaged over steps, not over rows).
        assert epoch.loss == pytest.approx([n + k for n, k in zip(epoch.nll, epoch.kl)], rel=1e-2)
        assert epoch.seconds > 0.0
    assert run.train_seconds == pytest.approx(sum(e.seconds for e in run.history), abs=1e-2)


# --- the line ---------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_on_a_terminal_unless_told_not_to(monkeypatch):
    for stream, progress in ((io.StringIO(), None), (Terminal(), False), (Terminal(), None)):
        monkeypatch.setattr(sys, "stderr", stream)
        fit(make_network(), make_data(), SHORT, progress=progress)
        assert ("epoch 3/3" in stream.getvalue()) == (stream.isatty() and progress is None)


@pytest.mark.parametrize("replicates", [1, 3])
def test_progress_writes_one_line_an_epoch(replicates):
    stream = io.StringIO()
    progress = Progress(stream, force=True)
    run = fit(make_network(), make_data(), SHORT, replicates=replicates, callbacks=[progress])
    written = stream.getvalue()
    assert written.endswith("\n")
    assert written.count("\n") == 1
    lines = written.strip("\n").split("\r\x1b[2K")[1:]
    assert len(lines) == 3
    number = r"-?\d+\.\d+" if replicates == 1 else r"-?\d+\.\d+–-?\d+\.\d+–-?\d+\.\d+"
    for epoch, line in enumerate(lines, start=1):
        pattern = rf"[━╌]{{20}}  epoch {epoch}/3  nll {number}  kl {number}  density {number}  \d+:\d\d left"
        assert re.fullmatch(pattern, line)
    first = sorted(v / 23 for v in run.history[0].nll)
    assert f"nll {first[0]:.4f}" in lines[0]
    assert f"{first[-1]:.4f}  kl" in lines[0]
    progress.on_replicate_stopped(None, Stopped(2, 7, 31, "the KL of layer 0 was not finite"))
    assert "Replicate 2 (seed 7) stopped at step 31: the KL of layer 0" in stream.getvalue()


def test_spread():
    nan, inf = float("nan"), float("inf")
    assert _spread([3.0, 1.0, 2.0], ".1f") == "1.0–2.0–3.0"
    assert _spread([1.0, 2.0, 4.0, 9.0], ".1f") == "1.0–3.0–9.0"
    assert _spread([nan, 1.25, inf], ".1f") == "1.2"
    assert _spread([nan], ".1f") == "–"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (7325, "2:02:05")]
)
def test_clock(seconds, text):
    assert _clock(seconds) == text


# --- the log ----------------------------------------------------------------------------------------


def strict(line):
    def refuse(name):
        raise ValueError(name)

    return json.loads(line, parse_constant=refuse)


def test_json_log(tmp_path):
    """One object per line that any JSON reader takes: start, epochs, stops, end."""
    path = tmp_path / "new" / "log.jsonl"
    rates = {"learning_rate": [1e-2, 1e300]}
    run = fit(
        make_network(), make_data(), SHORT, replicates=2, per_replicate=rates, callbacks=[JsonLog(path)]
    )
    lines = [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["start", "stopped", "epoch", "epoch", "epoch", "end"]
    assert lines[0]["seeds"] == [0, 1]
    assert lines[0]["mode"] == "eager"
    assert (lines[0]["from_epoch"], lines[0]["epochs"]) == (0, 3)
    assert (lines[1]["replicate"], lines[1]["seed"], lines[1]["step"]) == (1, 1, 1)
    for line, epoch in zip(lines[2:5], run.history):
        held = {k: v for k, v in line.items() if k not in ("event", "time")}
        assert [held[name][1] for name in ("loss", "nll", "kl")] == [None] * 3  # it has stopped
        assert all(math.isnan(getattr(epoch, name)[1]) for name in ("loss", "nll", "kl"))
        living = Epoch(**{name: v[:1] if isinstance(v, list) else v for name, v in held.items()})
        first = {name: v[:1] if isinstance(v, list) else v for name, v in vars(epoch).items()}
        assert living == Epoch(**first)
    assert lines[-1]["train_seconds"] == run.train_seconds
    times = [line["time"] for line in lines]
    assert times == sorted(times)


def test_json_log_goes_on_in_the_same_file(tmp_path):
    """After half a line, too, which a run that was killed while it wrote may leave."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"event": "epoch", "lo')
    for _ in range(2):
        fit(make_network(), make_data(), SHORT, callbacks=[JsonLog(path)])
    first, *others = path.read_text().splitlines()
    assert first == '{"event": "epoch", "lo'
    assert [strict(line)["event"] for line in others] == ["start", "epoch", "epoch", "epoch", "end"] * 2


# --- writes that fail -------------------------------------------------------------------------------


class Limit(Callback):
    """Lets files grow by ``room`` bytes only, in the epochs given: a write then ends in the middle."""

    def __init__(self, path, epochs, room=40):
        self.resource = pytest.importorskip("resource")
        self.path, self.epochs, self.room = path, epochs, room
        self.before = self.resource.getrlimit(self.resource.RLIMIT_FSIZE)

    def on_epoch_end(self, run, epoch):
        self.lift()
        if epoch.epoch in self.epochs:
            size = self.path.stat().st_size + self.room
            self.resource.setrlimit(self.resource.RLIMIT_FSIZE, (size, self.before[1]))

    def lift(self):
        self.resource.setrlimit(self.resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("epochs", [[1], [1, 2], [3]])
def test_a_log_that_cannot_be_written_does_not_end_training(tmp_path, caplog, epochs):
    """Its lines are whole; those that failed are written with the next ones, if there are any."""
    path, settings = tmp_path / "log.jsonl", dataclasses.replace(SHORT, epochs=4)
    (tmp_path / "file").touch()
    limit, nowhere = Limit(path, epochs), JsonLog(tmp_path / "file" / "log.jsonl")
    try:
        run = fit(make_network(), make_data(), settings, callbacks=[limit, JsonLog(path), nowhere])
    finally:
        limit.lift()
    assert run.epoch == 4
    lines = [strict(line) for line in path.read_text().splitlines()]
    wanted = ["start", "epoch", "epoch", "epoch", "epoch", "end"]
    # The last epoch's limit is still there when the end is logged.
    assert [line["event"] for line in lines] == (wanted[:4] if epochs == [3] else wanted)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2  # one for each log
    assert any(f"The log {path} could not be written (File too large)" in warning for warning in warnings)


class Writer:
    """TensorBoard's: one that has failed once raises for good."""

    made: ClassVar[list] = []
    fails_at = 5

    def __init__(self, folder):
        self.values, self.closed, self.broken = [], False, False
        self.made.append(self)

    def add_scalar(self, name, value, step):
        if self.broken or (len(self.made) == 1 and len(self.values) == self.fails_at):
            self.broken = True
            raise OSError(errno.ENOSPC, "No space left on device")
        self.values.append((name, step))

    def close(self):
        self.closed = True
        if self.fails_at == 12:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails_at", [5, 12])
def test_tensorboard_on_a_full_disk_does_not_end_training(monkeypatch, caplog, fails_at):
    """In an epoch, or when it is closed; the next epoch goes into another file."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="needs 'tensorboard'"):
        TensorBoard("runs")
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setattr(Writer, "fails_at", fails_at)
    monkeypatch.setattr(checkpoint, "RETRY_SECONDS", 0.0)
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    run = fit(make_network(), make_data(), SHORT, callbacks=[TensorBoard("runs")])
    assert run.epoch == 3
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "The TensorBoard log could not be written (No space left on device)" in warning
    if fails_at == 5:
        first, second = Writer.made
        assert len(first.values) == 5
        assert [step for _, step in second.values] == [2] * 4
        assert second.closed


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "Broken pipe"), ValueError("closed file")])
def test_a_terminal_that_is_gone_does_not_end_training(error, caplog):
    class Gone(Terminal):
        calls = 0

        def write(self, text):
            self.calls += 1
            raise error

    stream = Gone()
    run = fit(make_network(), make_data(), SHORT, callbacks=[Progress(stream)])
    assert run.epoch == 3
    assert stream.calls == 1
    assert "The progress line could not be written (" in caplog.text
