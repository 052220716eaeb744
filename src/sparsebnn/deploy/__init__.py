"""Fitted models as files that run without this library, and as folders for model registries.

:func:`export` writes; what is written is a :class:`~sparsebnn.deploy.predictor.Predictor`.
"""

from sparsebnn.deploy.folder import StoredModel, from_pretrained
from sparsebnn.deploy.formats import export

__all__ = ["StoredModel", "export", "from_pretrained"]
