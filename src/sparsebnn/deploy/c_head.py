"""The end of an exported C function: from the outputs of all networks to the predictive distribution."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sparsebnn.deploy.model import Exported
from sparsebnn.estimators.observations import DRAWS_OUTSIDE

__all__ = ["head_lines", "n_targets", "number"]


def number(value: float) -> str:
    """A constant of double precision."""
    return repr(float(value))


def _table(values: np.ndarray) -> str:
    rows = ["{" + ", ".join(map(number, row)) + "}" for row in values]
    return "{" + ", ".join(rows) + "}"


def n_targets(exported: Exported) -> int:
    """Classes, or real targets."""
    head = exported.predictor.head
    if head.kind == "bernoulli":
        return 2
    return int(getattr(head.likelihood, "n_classes", 0) or getattr(head.likelihood, "n_targets", 1))


def _growth(exported: Exported, count: int) -> list[str]:
    """Statements that add to the variance what the limits of the training range hide."""
    probes, each = exported.predictor.probes, exported.predictor.n_draws // exported.predictor.n_networks
    return [
        f"  for (int d = 0; outside && d < {exported.predictor.n_draws}; ++d) {{",
        f"    if (d % {each} >= {DRAWS_OUTSIDE}) continue;",
        "    sb_run(networks[d], wide, 1, out, work, 1);",
        f"    for (int t = 0; t < {count}; ++t) growth[t] -= (double)out[t] / {len(probes)};",
        "  }",
        f"  for (int t = 0; outside && t < {count}; ++t) noise_var[t] += growth[t] * growth[t];",
    ]


def head_lines(exported: Exported, widens: bool) -> list[str]:
    """Statements that run the networks and fill the result."""
    head, count, draws = exported.predictor.head, n_targets(exported), exported.predictor.n_draws
    each = ["    sb_run(networks[d], scratch, 1, out, work, 1);"]
    loop = [f"  for (int d = 0; d < {draws}; ++d) {{"]
    if head.kind != "gaussian":
        scale = number(head.scale)
        lines = [
            "  double known = 0.0;",
            f"  for (int c = 0; c < {count}; ++c) result->probabilities[c] = 0.0;",
            *loop,
            *each,
            f"    double p[{count}];",
        ]
        if head.kind == "bernoulli":
            lines += [f"    p[1] = 1.0 / (1.0 + exp(-{scale} * (double)out[0]));", "    p[0] = 1.0 - p[1];"]
        else:
            lines += [
                "    double largest = (double)out[0], sum = 0.0;",
                f"    for (int c = 1; c < {count}; ++c)",
                "      if ((double)out[c] > largest) largest = (double)out[c];",
                f"    for (int c = 0; c < {count}; ++c)",
                f"      sum += p[c] = exp({scale} * ((double)out[c] - largest));",
                f"    for (int c = 0; c < {count}; ++c) p[c] /= sum;",
            ]
        lines += [
            f"    for (int c = 0; c < {count}; ++c) {{",
            f"      result->probabilities[c] += p[c] / {draws};",
            f"      known -= p[c] > 0.0 ? p[c] * log(p[c]) / {draws} : 0.0;",
            "    }",
            "  }",
            "  result->label = 0;",
            "  result->entropy = 0.0;",
            f"  for (int c = 0; c < {count}; ++c) {{",
            "    const double q = result->probabilities[c];",
            "    result->entropy -= q > 0.0 ? q * log(q) : 0.0;",
            "    if (q > result->probabilities[result->label]) result->label = c;",
            "  }",
            "  result->mutual_information = result->entropy > known ? result->entropy - known : 0.0;",
        ]
        return lines
    raw = head.raw_std.double().reshape(draws, count)
    noise = (torch.as_tensor(head.scale) * nn.functional.softplus(raw).clamp_min(1e-6)).numpy()
    y_mean = [number(v) for v in head.y_mean.tolist()]
    y_std = [number(v) for v in head.y_std.tolist()]
    lines = [
        f"  static const double y_mean[{count}] = {{{', '.join(y_mean)}}};",
        f"  static const double y_std[{count}] = {{{', '.join(y_std)}}};",
        f"  double square[{count}], noise_var[{count}];",
    ]
    sums = []
    if widens:
        draws_each = draws // exported.predictor.n_networks
        lines.append(f"  double growth[{count}] = {{0.0}};")
        share = f"{len(exported.predictor.probes)}"
        sums = [f"      if (d % {draws_each} < {DRAWS_OUTSIDE}) growth[t] += m / {share};"]
    if head.heteroscedastic:
        lines.append(f"  static const double level[{draws}][{count}] = {_table(raw.numpy())};")
        scales = ", ".join(number(float(v)) for v in torch.as_tensor(head.scale).expand(count))
        lines.append(f"  static const double scale[{count}] = {{{scales}}};")
        var = [
            f"      double s = level[d][t] + 0.2 * (double)out[{count} + t];",
            "      s = s > 30.0 ? s : log1p(exp(s));",
            "      s = scale[t] * (s > 1e-6 ? s : 1e-6);",
        ]
    else:
        lines.append(f"  static const double noise[{draws}][{count}] = {_table(noise)};")
        var = ["      const double s = noise[d][t];"]
    return [
        *lines,
        f"  for (int t = 0; t < {count}; ++t) result->mean[t] = square[t] = noise_var[t] = 0.0;",
        *loop,
        *each,
        f"    for (int t = 0; t < {count}; ++t) {{",
        *var,
        "      const double m = (double)out[t], before = result->mean[t];",
        "      result->mean[t] += (m - before) / (d + 1);",
        "      square[t] += (m - before) * (m - result->mean[t]);",
        f"      noise_var[t] += s * s / {draws};",
        *sums,
        "    }",
        "  }",
        *(_growth(exported, count) if widens else []),
        f"  for (int t = 0; t < {count}; ++t) {{",
        f"    const double between = square[t] / {draws};",
        "    result->epistemic_std[t] = sqrt(between) * y_std[t];",
        "    result->std[t] = sqrt(between + noise_var[t]) * y_std[t];",
        "    result->mean[t] = result->mean[t] * y_std[t] + y_mean[t];",
        "  }",
    ]
