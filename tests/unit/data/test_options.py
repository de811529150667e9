"""The options that every dataset has."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from dpprobe.data.options import Headline, headline_metric
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError

DIGITS = {"source": "sklearn", "name": "digits"}
LESS = {"subsample": {"per_class": 9}}


@pytest.mark.parametrize(
    "checked",
    [
        {"delta": 1e-6}, {"allow_delta_above_one_over_n": True}, {"metric": "accuracy"},
        {"verify": "hash"}, {"duplicates": "warn"}, {"missing_classes": "warn"},
        {"expect": {"classes": 10}},
    ],
)  # fmt: skip
def test_what_only_checks_tables_does_not_make_them_stale(checked: dict[str, Any]) -> None:
    plain, options = dataset_options(DIGITS), dataset_options(DIGITS | checked)
    params = plain.preparation_params()
    assert options.preparation_params() == params
    assert options.image_params() == plain.image_params()
    assert dataset_options(params).preparation_params() == params
    assert plain.source_state() is None


def test_what_chooses_rows_makes_tables_stale_and_keeps_the_images() -> None:
    plain = dataset_options(DIGITS)
    assert "subsample" not in plain.preparation_params(), "older tables are still current"
    for chosen in ({"split_seed": 1}, LESS):
        options = dataset_options(DIGITS | chosen)
        assert options.preparation_params() != plain.preparation_params()
        # a ledger adds up all releases of the same images
        assert options.image_params() == plain.image_params()


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("classes", [None, 2, 3, 14])
def test_the_metric_of_a_dataset_fits_its_labels(classes: int | None, multi_label: bool) -> None:
    facts: Any = {"num_classes": classes, "multi_label": multi_label, "test_counts": (9, 1)}
    refused = {"macro_accuracy"} if multi_label else {"auc"} if classes in (3, 14) else set()
    for named in get_args(Headline):
        if named in refused:
            with pytest.raises(ConfigError, match=f"metric: {named} "):
                headline_metric(named, **facts)
        else:
            assert headline_metric(named, **facts) == named, "what a study names stays"
    skewed = "auc" if multi_label or classes == 2 else "macro_accuracy"
    assert headline_metric(None, **facts) == skewed
    for counts, even in (
        ((300, 150), True), ((301, 150), False), ((301, 200, 150), False), ((300, 200, 0), True),
        ((300, 0), True), ((2, 1), True), ((), True),
    ):  # fmt: skip
        expected = "accuracy" if even and not multi_label else skewed
        assert headline_metric(None, **facts | {"test_counts": counts}) == expected, counts
