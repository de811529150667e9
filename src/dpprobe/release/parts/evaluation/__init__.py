"""The release part `evaluate`: a noisy test result, with a separate epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, field_serializer

from dpprobe.data.options import Headline, headline_metric
from dpprobe.errors import ConfigError
from dpprobe.options import Options
from dpprobe.privacy.limits import Budget
from dpprobe.release.parts.part import ReleasePart

if TYPE_CHECKING:
    from dpprobe.study.options import ReleaseOptions
    from dpprobe.study.study_checks import WantedRelease


class EvaluateOptions(Options):
    """A noisy test result in a release's bundle, which spends epsilon of the test units."""

    epsilon: Budget = Field(
        description="Epsilon of the test result, spent by test units (images or patients), not by "
        "training units."
    )
    metric: Headline | None = Field(
        None,
        description="Metric that is measured and published; accuracy if absent, even if tables and "
        "figures show another metric. `metric` is required if the dataset names another metric. "
        "macro_accuracy publishes the mean recall of the classes and the worst-class recall.",
    )

    @field_serializer("metric")
    def _write_metric(self, metric: Headline | None) -> Headline | None:
        """Writes accuracy as None, so that stating the default metric does not change the hash."""
        return None if metric == "accuracy" else metric

    @property
    def published(self) -> Headline:
        return self.metric or "accuracy"


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    asked, name = wanted.release.block(EvaluateOptions), wanted.release.dataset
    if asked is None:
        return
    try:
        headline_metric(asked.metric, num_classes=wanted.classes, multi_label=wanted.multi_label)
    except ConfigError as error:
        yield f"evaluate: {error}"
    # A release never uses the dataset's metric, which `dpprobe init` may derive from labels.
    shown = wanted.study.datasets[name].metric
    if asked.metric is None and shown not in (None, "accuracy"):
        yield (
            f"evaluate: tables show {shown} of {name}, but the release would measure accuracy; "
            "write the `metric` in `evaluate`, where it is published"
        )


def find_test_metric(release: ReleaseOptions) -> Headline | None:
    asked = release.block(EvaluateOptions)
    return None if asked is None else asked.published


PART = ReleasePart(
    key="evaluate",
    options=EvaluateOptions,
    describe="Publish a test result; without it, the bundle does not state the head's quality.",
    test_metric=find_test_metric,
    faults=list_faults,
)
