"""Training: the objective, its settings, and replicates trained as one program."""

from sparsebnn.training.batches import Batch
from sparsebnn.training.callbacks import Callback, Epoch, JsonLog, Progress, Stopped, TensorBoard
from sparsebnn.training.checkpoint import CheckpointError
from sparsebnn.training.loop import Run, train
from sparsebnn.training.objective import Objective, Parts
from sparsebnn.training.optimizers import Constant, Cosine, OneCycle, Steps, Warmup
from sparsebnn.training.settings import RECOMMENDED, Settings
from sparsebnn.training.snapshot import BeforeRefit, CutAtRefit
from sparsebnn.training.trainer import Interrupted, ProcessLost

__all__ = [
    "Batch",
    "BeforeRefit",
    "Callback",
    "CheckpointError",
    "Constant",
    "CutAtRefit",
    "Cosine",
    "Epoch",
    "Interrupted",
    "JsonLog",
    "Objective",
    "OneCycle",
    "Parts",
    "ProcessLost",
    "Progress",
    "RECOMMENDED",
    "Run",
    "Settings",
    "Steps",
    "Stopped",
    "TensorBoard",
    "Warmup",
    "train",
]
