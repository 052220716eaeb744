"""What can watch a training run: named hooks, a live line, a log file, TensorBoard.

What these show or log never ends a training run: a write that fails is a warning.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sparsebnn.training.checkpoint import Writes

if TYPE_CHECKING:
    from sparsebnn.training.loop import Run


@dataclass(frozen=True)
class Epoch:
    """One finished epoch, a list entry per replicate. Losses are sums over the data, in nats.

    Those of a replicate that has stopped are NaN.
    """

    epoch: int
    loss: list[float]
    nll: list[float]
    kl: list[float]
    density: list[float]
    seconds: float


@dataclass(frozen=True)
class Stopped:
    """A replicate that stopped because its loss or gradient was no longer finite."""

    replicate: int
    seed: int
    step: int
    where: str
    advice: str = "Lower its learning rate."

    def __str__(self) -> str:
        return (
            f"Replicate {self.replicate} (seed {self.seed}) stopped at step {self.step}: {self.where}. "
            f"{self.advice}"
        )


class Callback:
    """Override the hooks you need.

    An exception that a hook raises ends training; it gets the run so far as its attribute ``run``.

    ``on_compiled`` comes after compiling and before the step runs for the first time; an eager run, or one
    that has nothing left to do, has no such moment.

    Where several processes share a run, hooks are called in each of them, or in the first alone
    (``everywhere = False``).
    """

    everywhere = True

    def on_compiled(self, run: Run) -> None: ...

    def on_train_start(self, run: Run) -> None: ...

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None: ...

    def on_replicate_stopped(self, run: Run, stopped: Stopped) -> None: ...

    def on_checkpoint(self, run: Run, path: Path) -> None: ...

    def on_train_end(self, run: Run) -> None: ...


def _spread(values: list[float], form: str) -> str:
    """min – median – max of the replicates that are finite, or the one value."""
    finite = sorted(v for v in values if v == v and abs(v) != float("inf"))
    if not finite:
        return "–"
    if len(finite) == 1:
        return format(finite[0], form)
    middle = statistics.median(finite)
    return "–".join(format(v, form) for v in (finite[0], middle, finite[-1]))


def _plain(value: Any) -> Any:
    """As JSON has it: no NaN."""
    return [None if v != v else v for v in value] if isinstance(value, list) else value


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Progress(Callback):
    """One live line for all replicates; silent where the output is not a terminal."""

    everywhere = False

    def __init__(self, stream: TextIO | None = None, force: bool = False) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = force or self.stream.isatty()
        self._began = time.monotonic()
        self._first = 0
        # ValueError: the stream is closed, or cannot encode the bar.
        self._writes = Writes((OSError, ValueError))

    def _show(self, text: str) -> None:
        """Write and flush; a stream that fails, such as a closed terminal, gets nothing more."""
        if self.live:
            self.live = self._writes.attempt("The progress line", lambda: self._put(text), "It ends here.")

    def _put(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def on_train_start(self, run: Run) -> None:
        self._began, self._first = time.monotonic(), run.epoch

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        if not self.live:
            return
        done, total = epoch.epoch + 1, run.settings.epochs
        left = (time.monotonic() - self._began) / max(1, done - self._first) * (total - done)
        filled = round(20 * done / total)
        rows = run.batches.rows
        parts = [
            "━" * filled + "╌" * (20 - filled),
            f"epoch {done}/{total}",
            f"nll {_spread([v / rows for v in epoch.nll], '.4f')}",
            f"kl {_spread([v / rows for v in epoch.kl], '.3f')}",
            f"density {_spread(epoch.density, '.3f')}",
            f"{_clock(left)} left",
        ]
        self._show("\r\x1b[2K" + "  ".join(parts))

    def on_replicate_stopped(self, run: Run, stopped: Stopped) -> None:
        self._show(f"\r\x1b[2K{stopped}\n")

    def on_train_end(self, run: Run) -> None:
        self._show("\n")


class JsonLog(Callback):
    """One JSON object per line: the start, every epoch (null: a stopped replicate's), stops, the end.

    Lines that cannot be written are kept and written with the next ones.
    """

    everywhere = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._writes = Writes()
        self._lines = b""

    def _write(self, event: str, record: dict[str, Any]) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **record}) + "\n"
        self._lines += line.encode()
        if self._writes.attempt(f"The log {self.path}", self._append, "Training continues and tries again."):
            self._lines = b""

    def _append(self) -> None:
        """Whole lines or nothing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            lines = self._lines
            if end:
                file.seek(end - 1)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines  # after a run killed while writing
            try:
                while lines:
                    lines = lines[file.write(lines) :]
            except BaseException:
                file.truncate(end)
                raise

    def on_train_start(self, run: Run) -> None:
        epochs = {"from_epoch": run.epoch, "epochs": run.settings.epochs}
        self._write("start", {"seeds": run.seeds, "mode": run.mode, **epochs})

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        self._write("epoch", {name: _plain(value) for name, value in asdict(epoch).items()})

    def on_replicate_stopped(self, run: Run, stopped: Stopped) -> None:
        self._write("stopped", asdict(stopped))

    def on_train_end(self, run: Run) -> None:
        self._write("end", {"train_seconds": run.train_seconds, "compile_seconds": run.compile_seconds})


class TensorBoard(Callback):
    """Scalars of every replicate for TensorBoard; needs the ``tensorboard`` package."""

    everywhere = False

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            message = "The TensorBoard callback needs 'tensorboard': pip install tensorboard"
            raise ImportError(message) from error
        self._open = lambda: SummaryWriter(str(folder))
        self._writer: Any = self._open()
        # TensorBoard writes through libraries that raise their own errors.
        self._writes = Writes((Exception,))

    def _try(self, write: Callable[[], None]) -> None:
        if not self._writes.attempt(
            "The TensorBoard log", write, "Training continues; these values are missing."
        ):
            self._writer = None  # a writer that failed stays broken: the next epoch opens another file

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        if not self._writes.paused:
            self._try(lambda: self._add(run, epoch))

    def _add(self, run: Run, epoch: Epoch) -> None:
        self._writer = self._writer or self._open()
        for name in ("loss", "nll", "kl", "density"):
            for seed, value in zip(run.seeds, getattr(epoch, name)):
                self._writer.add_scalar(f"{name}/seed{seed}", value, epoch.epoch)

    def on_train_end(self, run: Run) -> None:
        if self._writer is not None:
            self._try(self._writer.close)
