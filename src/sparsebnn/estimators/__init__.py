"""The scikit-learn surface: estimators that take a table and need no settings.

Importing this package loads scikit-learn; ``import sparsebnn`` does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as missing:
    raise ImportError("The estimators need 'scikit-learn': pip install 'sparsebnn[sklearn]'") from missing

from sparsebnn.estimators import persistence
from sparsebnn.estimators.classifier import SparseBNNClassifier
from sparsebnn.estimators.columns import ColumnWarning
from sparsebnn.estimators.conformal import ConformalClassifier, ConformalRegressor
from sparsebnn.estimators.encoding import Encoder, Table
from sparsebnn.estimators.explanation import Explanation, WhatIf
from sparsebnn.estimators.feature_selection import Effects
from sparsebnn.estimators.persistence import EstimatorError
from sparsebnn.estimators.regressor import SparseBNNRegressor
from sparsebnn.estimators.spike_slab import SpikeSlabClassifier, SpikeSlabRegression
from sparsebnn.estimators.survival import SparseBNNSurvival, StepFunction

__all__ = [
    "ColumnWarning",
    "ConformalClassifier",
    "ConformalRegressor",
    "Effects",
    "Encoder",
    "EstimatorError",
    "Explanation",
    "SparseBNNClassifier",
    "SparseBNNRegressor",
    "SparseBNNSurvival",
    "SpikeSlabClassifier",
    "SpikeSlabRegression",
    "StepFunction",
    "Table",
    "WhatIf",
    "load",
]


def load(path: str | Path) -> Any:
    """Load a classifier, regressor or survival model from the file that its ``save`` wrote."""
    kinds = (SparseBNNClassifier, SparseBNNRegressor, SparseBNNSurvival)
    return persistence.load(Path(path), {kind.__name__: kind for kind in kinds})
