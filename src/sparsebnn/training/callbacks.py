"""What can watch a training run: named hooks, a live line, a log file, TensorBoard."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from sparsebnn.training.run import Run

__all__ = ["Epoch", "Stopped", "Callback", "Progress", "JsonLog", "TensorBoard"]


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

    ``on_compiled`` comes after compiling and before the step runs for the first time; an eager run, or one
    that has nothing left to do, has no such moment.
    """

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

    def __init__(self, stream: TextIO | None = None, force: bool = False) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = force or self.stream.isatty()
        self._began = time.monotonic()
        self._first = 0

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
        self.stream.write("\r\x1b[2K" + "  ".join(parts))
        self.stream.flush()

    def on_replicate_stopped(self, run: Run, stopped: Stopped) -> None:
        if self.live:
            self.stream.write(f"\r\x1b[2K{stopped}\n")

    def on_train_end(self, run: Run) -> None:
        if self.live:
            self.stream.write("\n")
            self.stream.flush()


class JsonLog(Callback):
    """One JSON object per line: the start, every epoch (null: a stopped replicate's), stops, the end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def _write(self, event: str, record: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "time": round(time.time(), 3), **record}) + "\n")

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

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            message = "The TensorBoard callback needs 'tensorboard': pip install tensorboard"
            raise ImportError(message) from error
        self._writer = SummaryWriter(str(folder))

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        for name in ("loss", "nll", "kl", "density"):
            for seed, value in zip(run.seeds, getattr(epoch, name)):
                self._writer.add_scalar(f"{name}/seed{seed}", value, epoch.epoch)

    def on_train_end(self, run: Run) -> None:
        self._writer.close()
