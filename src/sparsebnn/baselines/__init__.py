"""What a sparse Bayesian network is measured against; trained by ``train``, read by ``predict``."""
