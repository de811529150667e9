"""Public facts of a training set and its target, from which `head: auto` chooses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from dpprobe.privacy.limits import to_json

if TYPE_CHECKING:
    from dpprobe.privacy.target import Target


# The metric for which all classes are equally important.
BALANCED_METRIC = "macro_accuracy"


@dataclass(frozen=True)
class DataFacts:
    """Public facts on which the choice of a head may depend without privacy cost.

    Attributes:
      n: training units of privacy: images, or patients.
      classes: number of classes, or of labels if images have several.
      epsilon: the target; infinite without privacy.
      metric: the metric that the user set beforehand; None if dpprobe derives it from labels.
    """

    n: int
    dimension: int
    classes: int
    multi_label: bool
    epsilon: float
    delta: float
    unit: str
    metric: str | None = None

    @classmethod
    def of_target(
        cls,
        target: Target,
        *,
        dimension: int,
        classes: int,
        multi_label: bool,
        metric: str | None = None,
    ) -> Self:
        """Returns the facts of features and a privacy target; a risk gives its nominal epsilon."""
        return cls(
            n=target.n,
            dimension=dimension,
            classes=classes,
            multi_label=multi_label,
            epsilon=target.nominal_epsilon,  # the calibrated epsilon would depend on the choice
            delta=target.delta,
            unit=target.unit,
            metric=metric,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the facts as a dictionary for JSON; omits an absent metric."""
        values = {**asdict(self), "epsilon": to_json(self.epsilon)}
        if self.metric is None:
            del values["metric"]
        return values
