"""Other people's methods, written anew, with the same verbs: fit, predict, inclusion."""

from sparsebnn.baselines.carbonetto_stephens import CarbonettoStephens

__all__ = ["CarbonettoStephens"]
