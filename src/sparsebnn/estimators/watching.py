"""When training ends before its last epoch: the time is up, or nothing improves."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from sparsebnn.inference.sampling import draw_outputs_of_all
from sparsebnn.likelihoods import Likelihood
from sparsebnn.training import Callback, Epoch, Run

__all__ = ["StopTraining", "TimeBudget", "EarlyStopping"]

_LOOKS = 40  # how often the validation rows are looked at in a full training


class StopTraining(Exception):
    """Raised out of a training run that shall end here; ``run`` has what was learned."""

    def __init__(self, run: Run, why: str) -> None:
        super().__init__(why)
        self.run, self.why = run, why


class TimeBudget(Callback):
    """Ends training where another epoch would end after ``until`` (of time.monotonic)."""

    why = "the time budget is spent"

    def __init__(self, until: float) -> None:
        self.until = until
        self._before = time.monotonic()

    def on_train_start(self, run: Run) -> None:
        self._before = time.monotonic()

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        now = time.monotonic()
        lasted, self._before = now - self._before, now
        if now + lasted > self.until and epoch.epoch + 1 < run.settings.epochs:
            raise StopTraining(run, self.why)


class EarlyStopping(Callback):
    r"""Ends training when the ELBO of held-out rows no longer rises, and goes back to its best.

    .. math:: -\frac{N}{|V|}\sum_{i \in V} w_i\,\mathrm{nll}_i - T \cdot \mathrm{KL}

    over the validation rows V, N training rows and the temperature T; looked at about 40 times, once
    the warm-up is over, with heteroscedastic noise once it may differ from row to row, and with a target
    density once it is reached and the structure is fixed.
    ``patience`` looks without a better one end the training.
    """

    def __init__(self, x: Tensor, y: Tensor, weight: Tensor, patience: int) -> None:
        self.x, self.y, self.weight, self.patience = x, y, weight, patience
        self.best = -float("inf")
        self.kept: dict[str, Tensor] = {}
        self.since = 0

    def _elbo(self, run: Run, epoch: Epoch) -> float:
        forms: list[Likelihood] = [run.replicates.unstack(k).likelihood for k in range(len(run.seeds))]
        total = torch.zeros(len(forms))
        for rows, outputs in draw_outputs_of_all(run.networks, self.x, 8, draws="weights"):
            for k, form in enumerate(forms):
                y, weight = form.prepare(self.y[rows]).to(outputs.device), self.weight[rows]
                each = torch.stack([form.nll(one, y) for one in outputs[k]]).mean(0).cpu()
                total[k] += (weight * each).sum()
        fit = run.batches.rows / len(self.y) * total
        kl = run.settings.beta(epoch.epoch) * torch.tensor(epoch.kl)
        living = [k for k in range(len(forms)) if k not in {s.replicate for s in run.stopped}]
        return -float((fit + kl)[living].mean())

    def on_epoch_end(self, run: Run, epoch: Epoch) -> None:
        settings = run.settings
        done, every = epoch.epoch + 1, max(1, settings.epochs // _LOOKS)
        if settings.targets and epoch.epoch < settings.refit_from:
            return
        rows_differ = any(name.endswith(".noise_switch") for name in run.replicates.shared)
        if rows_differ and epoch.epoch < settings.noise_from:
            return  # the likelihood is another one until then
        if done < settings.warmup * settings.epochs or (done % every and done != settings.epochs):
            return
        elbo = self._elbo(run, epoch)
        if elbo > self.best:
            self.best, self.since = elbo, 0
            self.kept = {name: p.clone() for name, p in run.replicates.parameters.items()}
            return
        self.since += 1
        if self.since >= self.patience:
            raise StopTraining(run, f"the validation ELBO has not risen for {self.patience} looks")

    def restore(self, run: Run) -> None:
        """Back to the best parameters seen."""
        for name, values in self.kept.items():
            run.replicates.parameters[name].copy_(values)
