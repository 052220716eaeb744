"""The progress line of ``sparsebnn fit``: a bar during training, the name of the stage otherwise."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from typing import Any

from sparsebnn.training import Callback, Epoch, Run

__all__ = ["Stages", "stages"]


class Stages(Callback):
    """One line on a terminal."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.task = progress.add_task("reading", total=None, figures="")

    def say(self, what: str) -> None:
        """Show a stage of unknown length."""
        self.progress.reset(self.task, total=None, description=what, figures="")

    def on_train_start(self, run: Run) -> None:
        self.progress.reset(self.task, total=run.settings.epochs, description="training", figures="")

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        nll = statistics.fmean(epoch.nll) / run.batches.rows
        figures = f"nll {nll:.3f}  density {statistics.fmean(epoch.density):.2f}"
        self.progress.update(self.task, completed=epoch.epoch + 1, figures=figures)

    def on_train_end(self, run: Run) -> None:
        self.say("measuring")


@contextlib.contextmanager
def stages(quiet: bool, console: Any = None) -> Iterator[Stages | None]:
    """The line, on standard error, removed at the end; None if quiet or without a terminal."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        yield None
        return
    console = console or Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = ("{task.description}", BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
    with Progress(SpinnerColumn(), *columns, console=console, transient=True) as progress:
        yield Stages(progress)
