"""Types of trained heads, and of callbacks during training. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dpprobe.heads.transform import Transform

# The name in files of released priors.
CLASS_PRIORS = "class_priors"
STUDENT_GAIN = "student_gain"  # a student's noisy gain, also the name of its release
TYPICAL = "typical_directions"  # the name of `Heads.typical` in files
# Values by name, one per seed.
Values = Mapping[str, "Sequence[float] | np.ndarray"]
# A fit calls a `Record` with (step, weights [seeds, classes, d + 1]). A `Record` must copy weights
# to keep them, because training overwrites them. Values it returns, one per seed, join the history.
Record = Callable[[int, "torch.Tensor"], "Values | None"]
# `fit_heads` calls an `Observe` with the normalisation of rows as a third argument.
Observe = Callable[[int, "torch.Tensor", "Transform"], "Values | None"]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The result of a head module's `fit`.

    Attributes:
      weights: float32 [seeds, classes, d + 1], for normalised rows of d features; biases come last.
      steps: number of noisy steps; 0 for a method without noisy steps.
      history: one record per seed and recorded step: seed_index, step, epoch, train_loss, ...
        Training losses are not private.
      chosen: for each seed the choice of a search, JSON-compatible; empty without a search.
      priors: float32 [seeds, classes], released class frequencies, whose logs were subtracted from
        the biases.
      gains: float32 [seeds, 2], the released gain of a student on public images, and the threshold
        above which the student replaces the head; see `heads.student`.
    """

    weights: npt.NDArray[np.float32]
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    chosen: tuple[Mapping[str, Any], ...] = ()
    priors: npt.NDArray[np.float32] | None = None
    gains: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, kw_only=True)
class Heads(Fitted):
    """Linear classifiers, one per seed.

    Attributes:
      transforms: per seed, the normalisation of feature rows before the head is applied.
      typical: float32 [seeds, r, d], main directions of the training rows, from released moments.
    """

    seeds: tuple[int, ...]
    transforms: tuple[Transform, ...]
    typical: npt.NDArray[np.float32] | None = None

    def released_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Returns released arrays other than the weights, by name; each is [seeds, ...]."""
        import numpy as np  # heavy: planning imports this module

        arrays = {
            name: np.stack([transform.arrays[name].cpu().numpy() for transform in self.transforms])
            for name in self.transforms[0].arrays
        }
        more = {CLASS_PRIORS: self.priors, STUDENT_GAIN: self.gains, TYPICAL: self.typical}
        return arrays | {name: values for name, values in more.items() if values is not None}
