"""What the processes of a group run: ``python processes.py JOB RANK PROCESSES FOLDER``."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import nn

import sparsebnn
from sparsebnn.checks import InvalidInput
from sparsebnn.training import Callback, ProcessLost, Settings
from training.runs import fit, make_data, make_network, parameters

ROWS = 46
OPTIONS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "spike_slab": {},
    "concrete": {"relaxation": 0.5},
    "flow": {"hidden": (5, 4)},
    "mnf": {"hidden": (5, 4)},
    "z per example": {"hidden": (5, 4), "z_per": "example"},
}


def smooth(name: str, dtype: torch.dtype) -> nn.Module:
    family = "flow" if name.startswith("z") else name
    options = {"family": family, "family_options": OPTIONS[name], "activation": "tanh", "dtype": dtype}
    return sparsebnn.mlp([4, 6, 3], **options)


def results(run) -> dict[str, Any]:
    return {
        "parameters": parameters(run),
        "loss": torch.tensor([e.loss for e in run.history]),
        "seeds": run.seeds,
    }


def families(steps: int, dtype: torch.dtype, replicates=(1, 2), **options: Any) -> dict[str, Any]:
    """Every family alone and as two replicates; 15 rows a batch do not divide evenly."""
    x, y = make_data(rows=ROWS)
    settings = Settings(-(-steps // 4), 15, 1e-2)
    return {
        f"{name} {k}": results(fit(smooth(name, dtype), (x.to(dtype), y), settings, replicates=k, **options))
        for name in OPTIONS
        for k in replicates
    }


def fused_runs() -> dict[str, Any]:
    """Rectified units in single precision: compiled loops, also where a batch is computed in pieces."""
    x, y = make_data(rows=ROWS)
    found = {}
    for k, accumulate in ((1, 1), (2, 1), (2, 2)):
        run = fit(
            sparsebnn.mlp([4, 6, 3]),
            (x.float(), y),
            Settings(4, 15, 1e-2, accumulate=accumulate),
            replicates=k,
            mode="auto",
        )
        found[f"{k} {accumulate}"] = {**results(run), "mode": run.mode}
    return found


def image_run(**options: Any):
    """Convolutions, a module called twice, weights, moved images, a target density and a refit."""
    x, y = make_data("converted", rows=ROWS)
    weight = torch.rand(ROWS, generator=torch.Generator().manual_seed(1)) + 0.5
    settings = Settings(10, 15, 1e-2, target_density=0.5, refit=0.3, shift=1, warmup=0.3)
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)  # a start of the process's own
    network = make_network("converted")
    return fit(network, (x, y, weight), settings, replicates=2, **options)


def refused(act) -> str:
    try:
        act()
    except InvalidInput as error:
        return str(error)
    return ""


class Swapped(nn.Module):
    """Rows along the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = sparsebnn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[None]).mean(0)


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    network = smooth("gaussian", torch.float64)
    fully_shard(network[0], mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return network


def small(rank: int, folder: Path) -> dict[str, Any]:
    """All that the fast test looks at."""
    found = families(8, torch.float64, (2,))
    found["image"] = results(image_run(folder=folder / "image", checkpoint_seconds=0.0))
    x, y = make_data(rows=ROWS)
    own = {"replicates": [5, 2, 9], "per_replicate": {"temperature": [1.0, 0.5, 0.2]}}
    mine = fit(smooth("flow", torch.float64), (x, y), Settings(2, 15), parallel="replicates", **own)
    found["replicates"] = results(mine)
    one = smooth("gaussian", torch.float64)
    found["refused"] = [
        refused(lambda: fit(Swapped().double(), (x, y), Settings(2, 15))),
        refused(lambda: fit(one, (x, y), Settings(2, 15, temperature=1.0 + rank))),
        refused(lambda: fit(one, (x, y), Settings(2, 1))),
        refused(lambda: fit(one, (x, y), Settings(2, 15), mode="compiled")),
        refused(lambda: fit(one, (x, torch.ones(ROWS, 2)), Settings(2, 15), likelihood="cox")),
        refused(lambda: fit(sharded(), (x, y), Settings(2, 15))),
    ]
    found["fused"] = fused_runs()
    found["alone"] = results(fit(one, (x, y), Settings(1, 15), parallel="none"))
    return found


def long(rank: int, folder: Path) -> dict[str, Any]:
    """200 steps of every family in both precisions."""
    replicates = (1, 2) if dist.get_world_size() == 2 else (2,)
    return {str(dtype): families(200, dtype, replicates) for dtype in (torch.float64, torch.float32)}


def stretched(folder: Path, callbacks=(), **options: Any):
    """A longer run with checkpoints at every step, in the folder."""
    x, y = make_data(rows=ROWS)
    where = {"folder": folder / "run", "checkpoint_seconds": 0.0, "callbacks": callbacks, "replicates": 2}
    return fit(smooth("flow", torch.float64), (x, y), Settings(15, 15, 1e-2), **where, **options)


class DieAt(Callback):
    """Ends this process at once, as the kernel would, after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, run, epoch) -> None:
        if epoch.epoch == self.epoch:
            os._exit(9)


def dies(rank: int, folder: Path) -> dict[str, Any]:
    """The last process dies in the middle; the others report the error they get."""
    last = rank == dist.get_world_size() - 1
    try:
        stretched(folder, [DieAt(6)] if last else [])
    except ProcessLost as error:
        return {"message": str(error), "epochs": len(error.run.history)}  # type: ignore[attr-defined]
    return {"message": ""}


def resumes(rank: int, folder: Path) -> dict[str, Any]:
    """From the checkpoint to the end."""
    return results(stretched(folder, resume=True))


class StopHere(Callback):
    """Interrupts this process alone."""

    def on_epoch_end(self, run, epoch) -> None:
        if epoch.epoch == 4:
            import signal

            os.kill(os.getpid(), signal.SIGINT)


def interrupted(rank: int, folder: Path) -> dict[str, Any]:
    """Ctrl-C reaches the last process alone: all stop at the same step."""
    try:
        stretched(folder, [StopHere()] if rank == dist.get_world_size() - 1 else [])
    except KeyboardInterrupt as error:
        run = error.run  # type: ignore[attr-defined]
        return {"message": str(error), "step": int(run._engine["step"]), "parameters": parameters(run)}
    return {}


def start(job: str, processes: int, folder: Path) -> list[subprocess.Popen[str]]:
    """Start a group of processes that do a job."""
    folder.mkdir(exist_ok=True)
    for stale in folder.glob("store-*"):
        stale.unlink()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", __file__, job]
    return [
        subprocess.Popen(
            [*command, str(rank), str(processes), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def together(job: str, processes: int, folder: Path, dead: tuple[int, ...] = ()) -> list[Any]:
    """What each process of a group saved; None for those that are expected to die."""
    started = start(job, processes, folder)
    answers: list[Any] = []
    try:
        errors = [one.communicate(timeout=1500)[1] for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
    for rank, one in enumerate(started):
        if rank in dead:
            assert one.returncode == 9
            answers.append(None)
            continue
        assert one.returncode == 0, errors[rank]
        answers.append(torch.load(folder / f"{job}-{rank}.pt"))
    return answers


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen, rank, processes, where = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{where}/store-{chosen}",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=120),
    )
    torch.save(globals()[chosen](rank, where), where / f"{chosen}-{rank}.pt")
    if chosen != "dies":
        dist.barrier()
        dist.destroy_process_group()
    else:
        os._exit(0)  # a group that lost a process cannot be closed in order
