"""From a trained network to predictions: sampling, predictive distributions, calibration, metrics."""

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
    "LabelsPrediction",
    "RealPrediction",
    "SurvivalPrediction",
    "draw_outputs",
    "draw_outputs_of_all",
    "predict",
    "predict_all",
]
