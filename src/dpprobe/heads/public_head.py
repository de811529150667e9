"""Starts a fit at a public head, and takes larger steps in its direction.

A public head needs no private images. Examples are text embeddings of class names, a classifier
shipped with the backbone, or the head of an earlier public study. Everything here depends only on
its file, public numbers and released values, so it costs no privacy.

Weights W [K, d + 1] apply to the fit's rows with the head's constant as last feature. U is the
public head in this form, with norm 1. Steps are multiplied by a matrix with three eigenvalues:

- `along` for U: the largest factor at which descent converges without noise. A single direction has
  little noise, so the private images soon decide how much of U the head keeps.
- `within` for the span of U's rows (the features that the public head uses) and for the biases: at
  most 3. So images can exchange classes, or correct one class, with little noise.
- 1 for all other directions.

The start is 2.5 standard deviations of the noise that all steps add along U. So with few units the
head predicts like the public head: noise reverses the sign of only 1 in 160 starts. With more
units, or a larger epsilon, start and factors fade. Without noise, the public head changes nothing.
bench/results/few_patients.md compares other factors, starts and mixtures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.gradient_options import GRADIENTS, UnitRowOptions, step_noise
from dpprobe.heads.initial_weights import weights_from_file
from dpprobe.heads.normalisation import CENTRE
from dpprobe.heads.rows import Rows
from dpprobe.heads.schedules import rate_of
from dpprobe.options import resolve_path
from dpprobe.privacy.releases import Releases

OPTION = "public_head"
# Standard deviations of the noise along U at which a fit starts.
_START = 2.5
# The largest factor for steps in the span of U's rows.
_WITHIN = 3.0
# A lower limit for 1 - |c|^2, because noise may make a released centre c too long.
_LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class PublicHead:
    """A public head in the parameters of a fit, and the factors of steps.

    Attributes:
      direction: U, float64 [K, d + 1], with norm 1; biases are divided by the head's constant.
      features: float64 [r, d + 1], an orthonormal basis of the span of U's rows and the constant.
      along, within: factors of steps along U, and on `features`.
      length: the norm of the start.
    """

    direction: torch.Tensor
    features: torch.Tensor
    along: float
    within: float
    length: float

    def start_weights(self, constant: float) -> torch.Tensor:
        """Returns the start as weights, float64 [K, d + 1], with biases for a constant of 1."""
        weights = self.length * self.direction
        weights[:, -1] *= constant
        return weights

    def stretch(self, gradient: torch.Tensor) -> torch.Tensor:
        """Multiplies gradients [..., K, d + 1] by the factors of steps."""
        direction, features = self.direction.to(gradient), self.features.to(gradient)
        along = (gradient * direction).sum((-2, -1), keepdim=True) * direction
        rest = gradient - along
        within = (rest @ features.T) @ features
        return rest + (self.within - 1) * within + self.along * along


def read_public_head(
    written: str, options: UnitRowOptions, rows: Rows, releases: Releases, *, beta: float
) -> PublicHead:
    """Reads the file of `public_head` for a fit; raises ConfigError if shapes do not fit.

    The file's weights are for features of norm 1, such as text embeddings. `beta` is the fraction
    of the velocity that each step keeps.
    """
    path = str(resolve_path(written))
    values = weights_from_file(path, rows.num_classes, rows.dimension, option=OPTION)
    weights = torch.from_numpy(values).to(rows.device)
    weights = rows.fitted_weights(_around_centre(options, weights, rows))
    weights[:, -1] /= options.constant
    size = float(torch.linalg.vector_norm(weights))
    if size == 0:
        raise ConfigError(
            f"{OPTION} {written}: it has the same weights for every class, so it cannot "
            f"distinguish them; name another file, or remove {OPTION}"
        )
    direction = weights / size
    steps = releases.plan.find_mechanism(GRADIENTS).count
    rate = rate_of(options, rows, releases)
    classes, dimension = rows.num_classes, rows.dimension
    longest = options.choose_rate(steps, noise=0.0, classes=classes, dimension=dimension)
    along = max(1.0, longest / rate)
    deviation = along * rate * step_noise(releases) * _accumulated_noise(beta, steps)
    return PublicHead(
        direction=direction,
        features=_span_features(direction),
        along=along,
        within=min(_WITHIN, along),
        length=_START * deviation,
    )


def _around_centre(options: UnitRowOptions, weights: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Converts a head on rows u of norm 1 to a head on centred rows (u - c) / |u - c|.

    |u - c| is replaced by its root mean square, sqrt(1 - |c|^2). A softmax ignores terms that all
    classes share. For a sigmoid, biases are 0, because similarities to texts have no threshold.
    """
    centre = rows.scoring.arrays.get(CENTRE)
    weights = weights.clone()
    if options.multi_label:
        weights[:, -1] = 0
        return weights
    if centre is not None:
        centre = centre.double().to(weights.device)
        spread = max(_LEAST_SPREAD, 1 - float(centre.square().sum()))
        weights[:, -1] = (weights[:, -1] + weights[:, :-1] @ centre) / math.sqrt(spread)
    return weights - weights.mean(0)


def _span_features(direction: torch.Tensor) -> torch.Tensor:
    """Returns an orthonormal basis of the span of U's rows and the constant: [r, d + 1]."""
    _, values, vectors = torch.linalg.svd(direction[:, :-1], full_matrices=False)
    kept = vectors[values > 1e-9 * values.max()] if len(values) else vectors
    constant = torch.zeros_like(direction[:1])
    constant[:, -1] = 1
    return torch.cat([torch.nn.functional.pad(kept, (0, 1)), constant])


def _accumulated_noise(beta: float, steps: int) -> float:
    """Returns a weight's deviation after heavy-ball steps on pure noise of deviation 1, at rate 1.

    The noise of a step with k later steps is multiplied by 1 + beta + ... + beta^k.
    """
    total, factor = 0.0, 0.0
    for _ in range(steps):
        factor = 1 + beta * factor
        total += factor**2
    return math.sqrt(total)
