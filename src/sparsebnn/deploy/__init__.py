"""Fitted models as files that run without this library, and as folders for model registries.

:func:`export` writes; what is written is a :class:`~sparsebnn.deploy.predictor.Predictor`. :func:`formula`
shows a small network as an equation.
"""

from sparsebnn.deploy.folder import StoredModel, from_pretrained
from sparsebnn.deploy.formats import export
from sparsebnn.deploy.formula import Formula, formula

__all__ = ["Formula", "StoredModel", "export", "formula", "from_pretrained"]
