r"""Five Gaussian clusters in the plane: the data of the study of predictive uncertainty.

The published covariances of clusters 2 to 5 are not covariances (negative eigenvalues; two are not even
symmetric). In their place stands the positive factor :math:`|\Sigma| = (\Sigma^\top \Sigma)^{1/2}`, the
covariance from which NumPy's legacy ``multivariate_normal`` draws when it is given :math:`\Sigma`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebnn.checks import check_count

__all__ = ["Clusters", "Scaling", "five_clusters", "positive_factor"]

_MEANS = ((-8.0, -8.0), (6.0, 6.0), (-7.0, 8.0), (8.0, -8.0), (0.0, 0.0))
_PUBLISHED = (
    ((6.0, -1.0), (-1.0, 3.5)),
    ((0.0, 3.0), (3.0, 0.0)),
    ((-3.0, 4.0), (-5.0, 1.0)),
    ((0.0, 5.0), (4.0, 2.0)),
    ((0.0, 9.0), (9.0, 0.0)),
)


def positive_factor(matrix: Tensor) -> Tensor:
    r"""The positive semi-definite factor :math:`(A^\top A)^{1/2}` of a polar decomposition.

    >>> positive_factor(torch.tensor([[0.0, 3.0], [3.0, 0.0]]))
    tensor([[3., 0.],
            [0., 3.]])
    """
    _, singular, right = torch.linalg.svd(matrix)
    return right.mT @ torch.diag_embed(singular) @ right


@dataclass(frozen=True)
class Scaling:
    """Each coordinate from [low, high] to [0, 1]; what lies outside goes outside."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Scaling:
        """The smallest box that holds these rows."""
        return cls(x.min(0).values, x.max(0).values)

    def apply(self, x: Tensor) -> Tensor:
        return (x - self.low) / (self.high - self.low)

    def invert(self, x: Tensor) -> Tensor:
        return self.low + x * (self.high - self.low)


@dataclass(frozen=True)
class Clusters:
    """A mixture of Gaussians, each a class, all equally frequent. Everything in float64."""

    means: Tensor
    covariances: Tensor

    def sample(self, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
        """``per_class`` rows of each class, class after class: ``(rows, 2)`` and labels."""
        check_count(per_class, "per_class", "Clusters.sample")
        generator = torch.Generator().manual_seed(seed)
        classes, size = self.means.shape
        normal = torch.randn(classes, per_class, size, generator=generator, dtype=torch.float64)
        x = self.means.unsqueeze(1) + normal @ torch.linalg.cholesky(self.covariances).mT
        return x.flatten(0, 1), torch.arange(classes).repeat_interleave(per_class)

    def log_density(self, x: Tensor) -> Tensor:
        """log N(x; mean, covariance) of each class, ``(rows, classes)``."""
        factor = torch.linalg.cholesky(self.covariances)
        apart = (x.double().unsqueeze(1) - self.means).unsqueeze(-1)
        white = torch.linalg.solve_triangular(factor, apart, upper=False).squeeze(-1)
        log_det = torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white**2).sum(-1) - log_det - 0.5 * x.shape[-1] * math.log(2.0 * math.pi)

    def probs(self, x: Tensor) -> Tensor:
        """The true probability of each class at x."""
        return torch.softmax(self.log_density(x), dim=-1)


def five_clusters() -> Clusters:
    """The clusters of the paper's appendix B, with valid covariances.

    >>> five_clusters().covariances[4]
    tensor([[9., 0.],
            [0., 9.]], dtype=torch.float64)
    """
    published = torch.tensor(_PUBLISHED, dtype=torch.float64)
    covariances = published.clone()
    for k, matrix in enumerate(published):
        valid = bool((matrix == matrix.mT).all()) and bool((torch.linalg.eigvalsh(matrix) > 0).all())
        covariances[k] = matrix if valid else positive_factor(matrix)
    return Clusters(torch.tensor(_MEANS, dtype=torch.float64), covariances)
