"""From a trained network to predictions: sampling, predictive distributions, calibration, metrics."""

from sparsebnn.inference.curves import WhatIf, what_if
from sparsebnn.inference.explanation import Explanation, explain
from sparsebnn.inference.mixture import Mixture, mixture
from sparsebnn.inference.prediction import (
    ClassPrediction,
    LabelsPrediction,
    RealPrediction,
    SurvivalPrediction,
    predict,
    predict_all,
)
from sparsebnn.inference.sampling import draw_outputs, draw_outputs_of_all

__all__ = [
    "ClassPrediction",
    "Explanation",
    "LabelsPrediction",
    "Mixture",
    "RealPrediction",
    "SurvivalPrediction",
    "WhatIf",
    "draw_outputs",
    "draw_outputs_of_all",
    "mixture",
    "explain",
    "predict",
    "predict_all",
    "what_if",
]
