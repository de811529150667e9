"""The options of the part `evaluation`."""

from __future__ import annotations

from pydantic import Field, field_serializer

from dpprobe.data.options import Headline
from dpprobe.options import Options
from dpprobe.privacy.limits import Budget


class EvaluateOptions(Options):
    """A noisy test result in a release's bundle, which spends epsilon of the test units."""

    epsilon: Budget = Field(
        description="Epsilon of the test result, spent by test units (images or patients), not by "
        "training units."
    )
    metric: Headline | None = Field(
        None,
        description="Metric that is measured and published; accuracy if absent, even if tables and "
        "figures show another metric. Required if the dataset names another metric. macro_accuracy "
        "publishes the mean recall of the classes and the worst-class recall.",
    )

    @field_serializer("metric")
    def _write_metric(self, metric: Headline | None) -> Headline | None:
        """Writes the default metric in one way, so that a release with it has one hash."""
        return None if metric == "accuracy" else metric

    @property
    def published(self) -> Headline:
        return self.metric or "accuracy"
