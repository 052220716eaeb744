"""What a step of ResNet-18 costs in bfloat16: LBBNN-LRT and dense Bayesian next to plain.

``python -m benchmarks.resnet --out resnet.json`` times, for each batch size, captured steps of the three
networks with everything in them (batch, augmentation, optimizer), and ``pytorch``: the plain network in
PyTorch alone, with its fused momentum, captured as one graph, on a batch in memory. It adds the
time to the first step from cold kernels, eager steps at the first batch size, the ten costliest kernels of
the LRT step, and how far its gradient is from that of full precision.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebnn import predict
from sparsebnn.app.provenance import commit_and_source, device_name, rounded, versions
from sparsebnn.kernels.dispatch import capturing
from sparsebnn.likelihoods import Categorical
from sparsebnn.nn import resnet
from sparsebnn.nn.image_networks import PlainResNet
from sparsebnn.posteriors import GaussianPrior, SpikeSlabPrior
from sparsebnn.training.augmentation import Crop, Flip
from sparsebnn.training.batches import Batches
from sparsebnn.training.compile import captured
from sparsebnn.training.devices import matmul_precision
from sparsebnn.training.engine import Engine
from sparsebnn.training.objective import Objective, Replicates
from sparsebnn.training.settings import Settings
from studies.baselines.deterministic import Deterministic

_ROUNDS, _FORM = 5, Categorical(10)
METHODS = ("lrt", "dense", "plain")


def network(method: str, depth: int) -> Any:
    if method == "plain":
        return Deterministic(PlainResNet(depth), prior_std=0.2)
    if method == "dense":
        return resnet(depth, family="gaussian", prior=GaussianPrior(std=0.1))
    return resnet(depth, prior=SpikeSlabPrior(0.1, std=0.1))


def engine(
    method: str, depth: int, batch: int, device: torch.device, mode: str, autocast: str | None = "bfloat16"
) -> Engine:
    """An engine at the start of an epoch, ready to run."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (8 * batch, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (8 * batch,), generator=generator)
    made = network(method, depth)
    batches = Batches.of((x, y), _FORM, batch, device, torch.float32, made)
    replicates = Replicates(Objective(made, _FORM, len(x)), [0], device)
    replicates.objective.autocast = None if autocast is None else torch.bfloat16
    replicates.objective.channels_last = True
    settings = Settings(
        batch_size=batch,
        learning_rate=1e-4,
        optimizer="sgd" if method == "plain" else "adam",
        temperature=1e-3,
        autocast=autocast,
        channels_last=True,
    )
    ready = Engine(replicates, batches, settings, mode=mode, augment=[Crop(4), Flip()])
    ready.prepare()
    ready.begin_epoch(0)
    return ready


def pytorch(depth: int, batch: int, device: torch.device) -> Callable[[], Any]:
    """A step of the plain network without this library."""
    made = PlainResNet(depth).to(device, memory_format=torch.channels_last)
    x = torch.rand(batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device=device)
    optimizer = torch.optim.SGD(made.parameters(), 1e-4, momentum=0.9, weight_decay=5e-4, fused=True)

    def step() -> None:
        # A captured step keeps no casts: the cache would outlive the graph's first run.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(made(x).float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return captured(step) if device.type == "cuda" else step


def _wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def milliseconds(step: Callable[[], Any], device: torch.device, steps: int) -> float:
    """The median over rounds."""
    each = []
    for _ in range(_ROUNDS):
        began = _wait(device)
        for _ in range(steps):
            step()
        each.append((_wait(device) - began) / steps)
    return 1e3 * sorted(each)[_ROUNDS // 2]


def _advance(made: Engine) -> Callable[[], None]:
    def step() -> None:
        made["position"].zero_()
        made.run(1)

    return step


def timed(
    method: str, depth: int, batch: int, device: torch.device, mode: str, steps: int
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """A row, and the step that it is about."""
    began = _wait(device)
    if method == "pytorch":
        step, ran = pytorch(depth, batch, device), mode
    else:
        made = engine(method, depth, batch, device, mode)
        step, ran = _advance(made), made.mode
    step()
    row: dict[str, Any] = {"method": method, "batch": batch, "requested": mode, "mode": ran}
    row |= {"first_seconds": _wait(device) - began, "cudnn_benchmark": torch.backends.cudnn.benchmark}
    row["step_ms"] = milliseconds(step, device, min(3, steps) if ran == "eager" else steps)
    if device.type == "cuda":
        row["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return row, step


def costliest(step: Callable[[], Any], device: torch.device, count: int = 10) -> list[dict[str, Any]]:
    """The kernels with the longest times in a step, and a last entry for all of them."""
    kinds = [
        torch.profiler.ProfilerActivity.CUDA if device.type == "cuda" else torch.profiler.ProfilerActivity.CPU
    ]
    steps = 5
    with torch.profiler.profile(activities=kinds) as seen:
        for _ in range(steps):
            step()
        _wait(device)
    cuda = device.type == "cuda"
    found = [
        (event.self_device_time_total if cuda else event.self_cpu_time_total, event.count, event.key)
        for event in seen.key_averages()
    ]
    found.sort(reverse=True)
    rows = [
        {"kernel": key[:90], "ms": us / 1e3 / steps, "launches": n / steps} for us, n, key in found[:count]
    ]
    total = sum(us for us, _, _ in found) / 1e3 / steps
    return [*rows, {"kernel": "all", "ms": total, "launches": sum(n for _, n, _ in found) / steps}]


def precision(depth: int, batch: int, device: torch.device) -> dict[str, float]:
    """One gradient in three ways, with the same noise: full precision, eager bfloat16, and as captured."""
    found = {}
    for name, autocast, scope in (
        ("full", None, nullcontext()),
        ("eager", "bfloat16", nullcontext()),
        ("captured", "bfloat16", capturing() if device.type == "cuda" else nullcontext()),
    ):
        made = engine("lrt", depth, batch, device, "eager", autocast)
        with scope:
            gradients, parts = made._gradients(*made._noise(made.state))
        flat = {kind: _flat(gradients, kind) for kind in ("mean", "raw_std", "inclusion_logit")}
        found[name] = {"nll": float(parts.nll), "kl": float(parts.kl), **flat}
    apart: dict[str, float] = {f"nll_{name}": one["nll"] for name, one in found.items()}  # type: ignore[misc]
    for name in ("eager", "captured"):
        apart[f"kl_{name}"] = found[name]["kl"] / found["full"]["kl"]  # type: ignore[operator,assignment]
        for kind in ("mean", "raw_std", "inclusion_logit"):
            pair = found[name][kind], found["full"][kind]
            apart[f"cosine_{kind}_{name}"] = float(F.cosine_similarity(*pair, dim=0))  # type: ignore[arg-type]
    return apart


def _flat(gradients: dict[str, Tensor], kind: str) -> Tensor:
    return torch.cat(
        [g.flatten().double() for name, g in gradients.items() if name.endswith(f"weights.{kind}")]
    )


def predictions(depth: int, device: torch.device, rows: int, draws: int) -> list[dict[str, Any]]:
    """Seconds to predict with draws, per 1,000 rows and draw, once everything is warm."""
    found: list[dict[str, Any]] = []
    made, x = network("lrt", depth).to(device).eval(), torch.rand(rows, 3, 32, 32, device=device)
    for model in ("average", "median"):
        for rounding in (False, True):
            scope = torch.autocast(device.type, torch.bfloat16) if rounding else nullcontext()
            with scope:
                predict(made, x[: min(rows, 1024)], _FORM, n_draws=1, model=model)
                began = _wait(device)
                predict(made, x, _FORM, n_draws=draws, model=model)
            spent = 1e3 * (_wait(device) - began) / (rows * draws / 1000)
            found.append({"model": model, "bfloat16": rounding, "ms_per_1000_rows_and_draw": spent})
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds a step, and how many times those of the plain networks."""
    lines = []
    for row in rows:
        same = {r["method"]: r["step_ms"] for r in rows if _case(r) == _case(row)}
        ratios = [f"{row['step_ms'] / same[n]:.2f} × {n}" for n in ("plain", "pytorch") if n in same]
        name = f"{row['method']:8} {row['batch']:4} {row['mode']:9} benchmark={row['cudnn_benchmark']!s:5}"
        first = f"first step {row['first_seconds']:6.2f} s"
        lines.append(f"{name} {row['step_ms']:8.2f} ms  {first}  {', '.join(ratios)}")
    return "\n".join(lines)


def _case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["batch"], row["requested"], row["cudnn_benchmark"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("resnet.json"))
    parser.add_argument("--depth", type=int, default=18)
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2048, help="to predict")
    parser.add_argument("--limit-seconds", type=float, default=90.0, help="begin no timing after this time")
    given = parser.parse_args()
    device, began = torch.device(given.device), time.perf_counter()
    fast = "captured" if device.type == "cuda" else "eager"
    content: dict[str, Any] = {"commit": commit_and_source()[0], "versions": versions()}
    content |= {"device": device_name(device), "depth": given.depth, "rows": []}
    torch.zeros(1, device=device)

    def keep() -> None:
        given.out.write_text(json.dumps(rounded(content), indent=1) + "\n", encoding="utf-8")

    # The largest first: it is what the study runs, and its first step is cold.
    wide, narrow = max(given.batches), min(given.batches)
    cases = [("lrt", wide, fast, False), *((m, wide, fast, True) for m in (*METHODS, "pytorch"))]
    cases += [(m, b, fast, True) for b in sorted(given.batches)[:-1] for m in (*METHODS, "pytorch")]
    cases += [(m, narrow, "eager", True) for m in METHODS] if fast != "eager" else []
    with matmul_precision(True):
        for method, batch, mode, search in cases:
            if time.perf_counter() - began > given.limit_seconds:
                break
            torch.backends.cudnn.benchmark = search
            row, step = timed(method, given.depth, batch, device, mode, given.steps)
            content["rows"].append(row)
            print(table(content["rows"]).splitlines()[-1], flush=True)
            if (batch, search) == (wide, True) and method in ("lrt", "pytorch"):
                content[f"kernels_{method}"] = costliest(step, device)
                for entry in content[f"kernels_{method}"]:
                    print(f"  {entry['ms']:8.3f} ms {entry['launches']:6.0f} × {entry['kernel']}", flush=True)
            if method == "lrt" and "precision" not in content:
                content["precision"] = precision(given.depth, narrow, device)
                print(rounded(content["precision"], 4), flush=True)
            keep()
            del step
        content["predictions"] = predictions(given.depth, device, given.rows, 4)
    for entry in rounded(content["predictions"], 3):
        print(entry)
    keep()
    print(table(content["rows"]))


if __name__ == "__main__":
    main()
