"""The options that every dataset has."""

from __future__ import annotations

import pytest

from dpprobe.data.options import Headline, headline_metric
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


def test_delta_does_not_decide_the_split_tables() -> None:
    dataset = load_study(changed("datasets.digits.delta", 1e-6)).datasets["digits"]
    params = load_study(STUDY).datasets["digits"].preparation_params()
    assert dataset.preparation_params() == params
    allowed = load_study(changed("datasets.digits.allow_delta_above_one_over_n", True))
    assert allowed.datasets["digits"].preparation_params() == params
    assert allowed.datasets["digits"].image_params() == dataset.image_params()
    assert dataset_options(params).preparation_params() == params
    assert dataset.source_state() is None


def test_the_metric_of_a_dataset_fits_its_labels() -> None:
    def metric_of(
        metric: Headline | None, classes: int | None, *, multi_label: bool = False
    ) -> str:
        return headline_metric(metric, num_classes=classes, multi_label=multi_label)

    assert metric_of(None, 2) == "accuracy"
    for classes, counts, expected in (
        (2, (300, 150), "accuracy"), (2, (301, 150), "auc"), (3, (301, 200, 150), "macro_accuracy"),
        (3, (300, 200, 0), "accuracy"), (2, (300, 0), "accuracy"), (2, (2, 1), "accuracy"),
    ):  # fmt: skip
        shown = headline_metric(None, num_classes=classes, multi_label=False, test_counts=counts)
        assert shown == expected, counts
    for named in ("accuracy", "macro_accuracy"):
        kept = headline_metric(named, num_classes=2, multi_label=False, test_counts=(9, 1))
        assert kept == named, "what a study names stays"
    with pytest.raises(ConfigError, match="macro_accuracy needs one label per row"):
        metric_of("macro_accuracy", 14, multi_label=True)
    assert metric_of(None, 14, multi_label=True) == "auc"
    assert (
        metric_of("auc", 2)
        == metric_of("auc", 14, multi_label=True)
        == metric_of("auc", None)
        == "auc"
    )
    assert metric_of("accuracy", 14, multi_label=True) == "accuracy"


def test_the_metric_does_not_decide_the_split_tables() -> None:
    dataset = load_study(changed("datasets.digits.metric", "accuracy")).datasets["digits"]
    assert dataset.preparation_params() == load_study(STUDY).datasets["digits"].preparation_params()
