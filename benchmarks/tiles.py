"""``python -m benchmarks.tiles``: the LeNet's convolution kernels, cut up in other ways (CUDA only).

Prints, for each kernel, the time of the tiles the library chooses and of the best ones tried. Candidates
compile side by side and are timed one at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch

from sparsebnn.io.files import locked
from sparsebnn.kernels.convolution import Shape, _shape, _splits

_GEOMETRY = ([1, 1], [0, 0], [1, 1])
# kernel: channels, image, filters, taps
_LAYERS = {"first": (1, 28, 32, 5), "second": (32, 12, 48, 5)}
_TURN: Any = None
_LOCK: Path | None = None


def _candidates(kernel: str, layer: str) -> list[tuple[int, ...]]:
    if kernel == "weight":
        grid = itertools.product(
            (32, 64), (32,) if layer == "first" else (64, 128, 256), (32, 64), (4, 8), (2, 3, 4)
        )
    else:
        grid = itertools.product((64, 128, 256), (32, 64), (16, 32, 64), (4, 8), (2, 3, 4))
    return list(grid)


def _case(kernel: str, layer: str, k: int) -> tuple[Any, Shape]:
    """A call of the kernel that takes tiles."""
    from sparsebnn.kernels import triton_convolution as kernels

    channels, size, filters, taps = _LAYERS[layer]
    make = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(k, *shape, device="cuda", generator=make)

    x, w = draw(100, channels, size, size), draw(filters, channels, taps, taps)
    shape = _shape(x, w, _GEOMETRY)
    bias, last = draw(filters), channels >= 16
    if kernel == "forward":
        given = (
            (x, w)
            if not last
            else (x.permute(0, 1, 3, 4, 2).contiguous(), w.permute(0, 3, 4, 2, 1).contiguous())
        )
        return lambda tiles: kernels.forward(
            given[0], given[1], given[1], bias, bias, shape, True, last, tiles
        ), shape
    grad = draw(100, filters, shape.oh, shape.ow)
    if kernel == "weight":
        splits = _splits(x, shape)
        sides = (grad, x) if not last else (t.permute(0, 1, 3, 4, 2).contiguous() for t in (grad, x))
        g, a = sides
        return lambda tiles: kernels.weight_grad(g, g, a, shape, splits, True, True, last, tiles), shape
    last_grad, weights = grad.permute(0, 1, 3, 4, 2).contiguous(), w.permute(0, 3, 4, 1, 2).contiguous()
    return lambda tiles: kernels.input_grad(
        last_grad, last_grad, x, weights, weights, shape, True, tiles
    ), shape


def _time(task: tuple[str, str, int, tuple[int, ...] | None]) -> dict[str, Any]:
    import triton

    from sparsebnn.kernels.triton_convolution import Tiles

    kernel, layer, k, numbers = task
    row: dict[str, Any] = {"kernel": kernel, "layer": layer, "replicates": k, "tiles": numbers}
    try:
        torch.set_float32_matmul_precision("high")
        call, _ = _case(kernel, layer, k)
        tiles = None if numbers is None else Tiles(*numbers)
        call(tiles)
        torch.cuda.synchronize()
        with _TURN, contextlib.nullcontext() if _LOCK is None else locked(_LOCK):
            row["us"] = 1e3 * triton.testing.do_bench(
                lambda: call(tiles), warmup=5, rep=20, return_mode="median"
            )
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {error}"[:120]
    return row


def _take_turns(turn: Any, lock: Path | None) -> None:
    global _TURN, _LOCK
    _TURN, _LOCK = turn, lock


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiles", description=__doc__)
    parser.add_argument("--replicates", type=int, nargs="+", default=[10])
    parser.add_argument("--kernels", nargs="+", default=["forward", "weight", "input"])
    parser.add_argument("--out", type=Path, help="file for all timings")
    parser.add_argument("--gpu-lock", type=Path, metavar="FILE", help="timings wait for this lock file")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("Error: the kernels run on CUDA only.", file=sys.stderr)
        return 1
    places = [
        (kernel, layer)
        for kernel in given.kernels
        for layer in _LAYERS
        if (kernel, layer) != ("input", "first")
    ]
    tasks = [
        (kernel, layer, k, numbers)
        for k in given.replicates
        for kernel, layer in places
        for numbers in [None, *_candidates(kernel, layer)]
    ]
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    with context.Pool(os.cpu_count(), _take_turns, (context.Lock(), given.gpu_lock)) as pool:
        for row in pool.imap_unordered(_time, tasks):
            rows.append(row)
            if given.out:
                given.out.write_text(json.dumps(rows), encoding="utf-8")
    for k in given.replicates:
        for kernel, layer in places:
            mine = [
                r
                for r in rows
                if (r["kernel"], r["layer"], r["replicates"]) == (kernel, layer, k) and "us" in r
            ]
            mine.sort(key=lambda row: row["us"])
            ours = [round(r["us"], 1) for r in mine if r["tiles"] is None]
            best = [(r["tiles"], round(r["us"], 1)) for r in mine if r["tiles"]][:4]
            print(f"{kernel} {layer} K={k}: ours {ours}; best {best}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
