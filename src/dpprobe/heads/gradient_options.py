"""Options and release of heads that take noisy gradient steps: sgd, momentum, adam and lamb.

Each step releases a sum of gradients plus Gaussian noise (Abadi et al. 2016, algorithm 1). The sum
is over all rows or a Poisson sample, and each example's gradient is clipped to L2 norm
`max_grad_norm`. At any weights, a row adds at most one clipped gradient and a null row adds
nothing, so the sensitivity is `max_grad_norm`. If units of privacy have several rows, units are
sampled, a unit adds the mean of its examples' clipped gradients, and n counts units. The
sensitivity is the same. Optimisers, schedules and averages see only the noisy sums:
post-processing. Initial weights are public.

Defaults of momentum, adam and lamb were chosen on public features
(bench/results/first_order_defaults.md). Momentum, adam and lamb by default scale rows to norm 1 and
centre them, for a share of the budget. They append a small constant, because with a constant of 1
biases would take half of a clipped gradient's squared norm. Their learning rates follow rules that
use only public quantities: n, d, the number of classes, and the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dpprobe.errors import ConfigError
from dpprobe.heads.balance_options import (
    BalanceOptions,
    ClassPriors,
    ClassWeights,
    OffsetShare,
    PriorShare,
)
from dpprobe.heads.normalisation import (
    CENTRED_BY_DEFAULT,
    L2,
    AroundCentre,
    Centred,
    Normalize,
    Share,
)
from dpprobe.heads.options import MOST_STEPS, ClippingNorm
from dpprobe.options import AtMost
from dpprobe.privacy.plan import Mechanism

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dpprobe.privacy.releases import Releases

GRADIENTS = "gradients"
MOST_EPOCHS = AtMost(
    100_000, "each step is a pass over all rows, and noise grows with the number of steps"
)
# The standard deviation of `init: scaled` without `init_scale`.
INIT_DEVIATION = 0.01

# Options whose defaults differ between heads.
BatchSize = Annotated[
    int | Literal["full"],
    Field(
        description="Expected examples per step: each example joins each step with probability "
        'batch_size / n. "full" takes every example in every step.'
    ),
]
GradientNorm = Annotated[
    ClippingNorm, Field(description="Each example's gradient is clipped to this L2 norm.")
]
Init = Annotated[
    Literal["zero", "torch", "scaled", "lecun_normal", "file"],
    Field(
        description="Initial weights. zero: weights and biases 0. torch: PyTorch's default for a "
        "linear layer, uniform within 1 / sqrt(d). scaled: normal with standard deviation "
        "init_scale, biases 0. lecun_normal: truncated normal with standard deviation 1 / "
        "sqrt(d), biases 0. file: public weights from init_file. Each seed draws its own random "
        "weights."
    ),
]
InitFile = Annotated[
    str | None,
    Field(
        min_length=1,
        description='A safetensors file whose tensor "weights" is [classes, d], or [classes, d + '
        "1] with the biases last. The file must be public, such as a zero-shot classifier; a head "
        "trained on private images is refused. {dataset} and {backbone} in the path stand for the "
        "names of dataset and backbone.",
    ),
]
# The option of heads that can start at a public head.
PublicHeadFile = Annotated[
    str | None,
    Field(
        min_length=1,
        exclude_if=lambda value: value is None,
        description="A head that needs no private image: `text`, the text embeddings of the class "
        'names by the same backbone; or a safetensors file with the tensor "weights" of init_file, '
        "for features of norm 1. Training starts at the public head and takes larger steps along "
        "it, at no privacy cost. With few images the head answers as the public head does, and "
        "with many the public head fades.",
    ),
]
# Options in other programs for batches that are not Poisson samples.
OTHER_BATCHES = ("sampling", "shuffle", "replacement", "without_replacement", "drop_last")


def check_start(init: str, file: str | None) -> None:
    """Raises ValueError if `init: file` lacks `init_file`, or another `init` has one."""
    if (init == "file") != (file is not None):
        raise ValueError(
            f"init {init} with init_file {file}: set both init: file and init_file, the path of "
            "the file, or neither"
        )


class GradientOptions(BalanceOptions):
    """The options of all heads that take noisy gradient steps."""

    # The default number of epochs, if neither epochs nor steps are given.
    DEFAULT_EPOCHS: ClassVar[float]
    paths: ClassVar[tuple[str, ...]] = ("init_file",)

    class_weights: ClassWeights = None
    class_priors: ClassPriors = None
    prior_share: PriorShare = None
    offset_share: OffsetShare = None
    loss: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="softmax: cross-entropy, for one label per image. sigmoid: the sum over "
        "classes of binary cross-entropies, for one label per image or several.",
    )
    batch_size: BatchSize = "full"
    epochs: Annotated[float, Field(gt=0), MOST_EPOCHS] | None = Field(
        None,
        description="Expected passes over the data; without epochs and steps, the head's default.",
    )
    steps: Annotated[int, Field(ge=1), MOST_STEPS] | None = Field(
        None, description="Number of steps, instead of epochs."
    )
    learning_rate: float | None = Field(gt=0, description="Length of a step.")
    max_grad_norm: GradientNorm = 1.0
    max_batch_grad_norm: ClippingNorm | None = Field(
        None,
        description="Only at epsilon inf, where no example's gradient is clipped: the mean "
        "gradient of a step is clipped to this L2 norm, as Mehta et al. 2022 train without "
        "privacy. Null clips nothing.",
    )
    init: Init = "zero"
    init_scale: float | None = Field(
        None,
        gt=0,
        description="For init: scaled, the standard deviation (0.01 if absent). For init: file, "
        "the factor by which the weights are multiplied (1 if absent).",
    )
    init_file: InitFile = None
    init_bias: float | None = Field(
        None, description="Initial value of all biases, instead of the value from init."
    )
    schedule: Literal["constant", "warmup_cosine", "warmup_linear"] = Field(
        "constant",
        description="Learning-rate schedule: constant; or a linear warm-up, then a decay to 0, as "
        "half a cosine or linear.",
    )
    warmup: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of all steps in which the learning rate rises: 0.025 is a quarter of "
        "an epoch out of ten.",
    )
    average: Literal["last", "mean", "ema"] = Field(
        "last",
        description="Returned weights: those after the last step, the mean over all steps, or "
        "their exponential moving average, debiased.",
    )
    ema_decay: Share | None = Field(
        None,
        description="For average: ema, the decay of the moving average per step (0.99 if absent).",
    )
    engine: Literal["closed_form", "exact", "opacus"] = Field(
        "closed_form",
        description="Computation of the clipped sums and their noise. closed_form: in float32, "
        "for benchmarks. exact: on a public grid, so that rounding reveals nothing about an "
        "example; slower, with the same bits on a CPU and a GPU. opacus: as closed_form, but by "
        "Opacus's code, for a second opinion; many times slower.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_batches(cls, values: Any) -> Any:
        named = [key for key in OTHER_BATCHES if isinstance(values, Mapping) and key in values]
        if named:
            raise ValueError(
                f"{named[0]}: not available, because batches are Poisson samples: shuffled or "
                "fixed-size batches have no tight epsilon (docs/methods/sgd.md); remove it"
            )
        return values

    @field_validator("batch_size")
    @classmethod
    def _check_batch_size(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{value}: must be a number of 1 or more")
        return value

    @model_validator(mode="after")
    def _check_gradient_options(self) -> GradientOptions:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs {self.epochs:g} and steps {self.steps}: set only one of them")
        check_start(self.init, self.init_file)
        if self.init_scale is not None and self.init not in ("scaled", "file"):
            raise ValueError(
                f"init_scale {self.init_scale:g} has no effect with init {self.init}; remove "
                "it, or write `init: scaled` or file"
            )
        if self.warmup and self.schedule == "constant":
            raise ValueError(
                f"warmup {self.warmup:g} has no effect with schedule constant; remove it, or "
                "write `schedule: warmup_cosine` or warmup_linear"
            )
        if self.ema_decay is not None and self.average != "ema":
            raise ValueError(
                f"ema_decay {self.ema_decay:g} has no effect with average {self.average}; "
                "remove it, or write `average: ema`"
            )
        if self.engine == "opacus" and self.class_weights:
            raise ValueError(self._describe_opacus("class_weights", "weigh clipped gradients"))
        return self

    def _describe_opacus(self, option: str, action: str) -> str:
        other = type(self).model_fields["engine"].default
        return f"{option}: Opacus does not {action}; remove it, or write `engine: {other}`"

    @property
    def units_fault(self) -> str | None:
        if self.engine != "opacus":
            return None
        other = type(self).model_fields["engine"].default
        return (
            "engine opacus clips gradients of images, not the means of a patient's images; write "
            f"`engine: {other}`, or `unit: image`"
        )

    @property
    def multi_label(self) -> bool:
        return self.loss == "sigmoid"

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.loss

    @property
    def is_exact(self) -> bool:
        return self.engine == "exact"

    @property
    def engine_limits(self) -> str | None:
        return None if self.engine == "exact" else self.engine

    @property
    def constant(self) -> float:
        """The constant appended to each row: an example's gradient is r [x, constant]."""
        return 1.0

    @property
    def has_unit_rows(self) -> bool:
        """True if all rows have norm 1, without the constant."""
        return isinstance(self.normalize, L2 | AroundCentre)

    def longest_gradient(self, classes: int) -> float:
        """Returns the largest norm of an example's gradient before clipping, for any weights."""
        residual = math.sqrt(classes if self.loss == "sigmoid" else 2)
        return residual * math.hypot(1, self.constant) if self.has_unit_rows else math.inf

    def choose_rate(self, steps: int, *, noise: float, classes: int, dimension: int) -> float:
        """Returns the learning rate by the head's rule; `noise` is the result of `step_noise`."""
        raise NotImplementedError(f"head {self.head} has no rule for its learning rate")

    def expected_batch_size(self, n: int) -> int:
        """Returns the expected batch size; raises ConfigError if it exceeds n."""
        if self.batch_size == "full":
            return n
        if self.batch_size > n:
            raise ConfigError(
                f"batch_size {self.batch_size} is above the {n} training rows; choose a smaller "
                'number, or "full"'
            )
        return self.batch_size

    def step_count(self, n: int) -> int:
        """Returns the number of steps on n rows: `steps`, or epochs * n / batch_size, rounded."""
        if self.steps is not None:
            return self.steps
        epochs = self.DEFAULT_EPOCHS if self.epochs is None else self.epochs
        return max(1, round(epochs * n / self.expected_batch_size(n)))

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        return (
            Mechanism(
                name=GRADIENTS,
                released="sum of the sampled rows' clipped gradients, one per step",
                sensitivity=self.max_grad_norm,
                noise_multiplier=1.0,
                sample_rate=self.expected_batch_size(n) / n,
                count=self.step_count(n),
            ),
        )


class UnitRowOptions(GradientOptions):
    """Options of momentum, adam and lamb: centred rows, a small intercept and a rate by rule."""

    DEFAULT_EPOCHS: ClassVar[float] = 40
    # True if the learning rate's rule is valid only for rows of norm 1.
    UNIT_ROWS: ClassVar[bool] = True

    normalize: Normalize = Field(default_factory=Centred, description=CENTRED_BY_DEFAULT)
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Length of a step. If absent, the rate follows from the dimension, the number "
        "of classes, the steps and the noise, all public, for features of norm 1.",
    )
    max_grad_norm: ClippingNorm = Field(
        0.7,
        description="Each example's gradient is clipped to this L2 norm. For features of norm 1 "
        "and 10 classes, an example's gradient has norm 0.97 at the start.",
    )
    intercept: float = Field(
        0.2,
        ge=0.01,
        le=10,
        description="Constant appended to each feature vector; the biases are learned from it. An "
        "example's gradient norm is its residuals' norm times sqrt(norm^2 + intercept^2). Usual "
        "linear layers have intercept 1.",
    )

    @model_validator(mode="after")
    def _check_rule(self) -> UnitRowOptions:
        if self.UNIT_ROWS and self.learning_rate is None and not self.has_unit_rows:
            raise ValueError(
                f"normalize: {self.normalize.kind} needs a learning_rate, because the default "
                "rate is for rows of norm 1; set a learning_rate, or normalize: l2, centred or "
                "whitened"
            )
        return self

    @property
    def constant(self) -> float:
        return self.intercept


def step_noise(releases: Releases) -> float:
    """Returns the standard deviation of the noise on each entry of a step's mean gradient."""
    sample_rate = releases.plan.find_mechanism(GRADIENTS).sample_rate
    return releases.noise_deviation(GRADIENTS) / (sample_rate * releases.plan.n)


def finite_weights(weights: torch.Tensor, options: GradientOptions) -> npt.NDArray[np.float32]:
    """Returns the weights as a NumPy array; raises ConfigError if training diverged."""
    import numpy as np  # heavy: planning imports this module

    array: npt.NDArray[np.float32] = weights.cpu().numpy()
    if not np.isfinite(array).all():
        rate = options.learning_rate
        raise ConfigError(
            f"head {options.head}: training diverged at learning_rate "
            f"{'by rule' if rate is None else f'{rate:g}'}; set a smaller learning_rate"
        )
    return array
