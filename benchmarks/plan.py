"""Which timings a run consists of, in the order in which they get ready: what compiles longest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.subjects import Task
from studies.tables.paper import METHODS

__all__ = ["DEPTHS", "IMAGES", "PARTS", "REPLICATES", "WIDTHS", "plan"]

PARTS = ("steps", "peers", "predict", "gradients", "sparse")
REPLICATES = (1, 2, 5, 10, 20, 64)
WIDTHS = (0.25, 0.5, 1.0, 2.0)
DEPTHS = (1, 2, 4, 6)
# How many images are predicted: enough for a second or so.
IMAGES = {
    "cuda": {"fc": 10_000, "lenet": 1_000},
    "cpu": {"fc": 200, "lenet": 50},
    "quick": {"fc": 20, "lenet": 5},
}
_TOGETHER = 10


def _steps(architectures: Sequence[str], replicates: Sequence[int]) -> list[Task]:
    tasks = []
    for architecture in architectures:
        tasks.append(Task("deterministic", architecture))
        for method in METHODS:
            tasks += [Task("ours", architecture, method, k) for k in replicates]
            tasks.append(Task("reference", architecture, method))
    return tasks


def _predictions(architectures: Sequence[str], replicates: int, images: Mapping[str, int]) -> list[Task]:
    return [
        Task("predict", architecture, method, replicates, model=model, images=images[architecture])
        for architecture in architectures
        for method in METHODS
        for model in ("average", "median")
    ]


def scaling(quick: bool = False) -> list[Task]:
    """LRT on the fully connected network: over K, over width, over depth."""
    replicates, widths, depths = (REPLICATES, WIDTHS, DEPTHS) if not quick else ((1, 2), (0.25, 1.0), (1, 2))
    together = 2 if quick else _TOGETHER
    tasks = [Task("ours", "fc", "lrt", k) for k in replicates]
    for width in widths:
        hidden = None if width == 1.0 else (round(400 * width), round(600 * width))
        tasks.append(Task("ours", "fc", "lrt", together, hidden))
    return tasks + [Task("ours", "fc", "lrt", together, (400,) * depth) for depth in depths]


def effort(task: Task) -> int:
    """How long a task takes to get ready, roughly: what is compiled, and how large its graph is."""
    if task.code != "ours":
        return 0
    if task.method == "flow":
        return 4 if task.architecture == "lenet" else 3
    return 2 if task.architecture == "lenet" or len(task.hidden or ()) > 3 else 1


def plan(
    parts: Sequence[str],
    architectures: Sequence[str],
    replicates: Sequence[int],
    *,
    peers: Sequence[str] = (),
    scale: bool = False,
    images: Mapping[str, int] = IMAGES["cuda"],
    quick: bool = False,
) -> list[Task]:
    """All tasks of a run, each once.

    >>> [task.code for task in plan(["steps"], ["fc"], [1])]
    ['ours', 'ours', 'ours', 'deterministic', 'reference', 'reference', 'reference']
    """
    tasks = _steps(architectures, replicates) if "steps" in parts else []
    if "peers" in parts:
        tasks += [Task(name, architecture) for architecture in architectures for name in peers]
    tasks += scaling(quick) if scale else []
    if "predict" in parts:
        tasks += _predictions(architectures, max(replicates), images)
    return sorted(dict.fromkeys(tasks), key=effort, reverse=True)
