"""What a sparse Bayesian network is measured against; one module each, with the same verbs."""

from studies.baselines.carbonetto_stephens import CarbonettoStephens

__all__ = ["CarbonettoStephens"]
