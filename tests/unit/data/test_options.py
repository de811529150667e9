"""Options that all sources share: checks, sizes, metrics and stale tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpprobe.data.dataset_sizes import count_used_rows, needs_every_class
from dpprobe.data.options import Headline, compute_imbalance, headline_metric
from dpprobe.data.registry import dataset_options
from dpprobe.data.subsample import without_subsample
from dpprobe.errors import ConfigError
from tests.support.sources import write_parquet

NAMED = {"label_column": "kind", "class_names": ["cat", "dog"]}
HASHED: dict[str, Any] = {"url": "http://h/x.zip?token=secret", "sha256": "0" * 64}
FOLDER = {"source": "imagefolder", "path": "x"}
SOURCES: dict[str, dict[str, Any]] = {
    "csv": {"source": "csv", "train": "a.csv"} | NAMED,
    "embeddings": {"source": "embeddings", "train": "v.npz", "table": "a.csv"} | NAMED,
    "huggingface": {
        "source": "huggingface",
        "repo": "a/b",
        "revision": "0" * 40,
        "train": "*.parquet",
    },
    "imagefolder": FOLDER,
    "parquet": {"source": "parquet", "train": "p.parquet"},
    "sklearn": {"source": "sklearn", "name": "digits"},
    "torchvision": {"source": "torchvision", "name": "EuroSAT"},
    "url": {"source": "url", "files": [HASHED], "layout": FOLDER},
    "webdataset": {"source": "webdataset", "train": "t.tar", "class_names": ["cat", "dog"]},
}
# 20 cats and 10 dogs
KINDS = [("cat", "dog")[number % 3 == 0] for number in range(30)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [f"{n}.png,{kind},p{n % 11}" for n, kind in enumerate(KINDS)]
    Path("a.csv").write_text("\n".join(["path,kind,who", *lines]))
    np.savez("v.npz", v=np.ones((30, 2), np.float32))
    labels = [("cat", "dog").index(kind) for kind in KINDS]
    write_parquet("p.parquet", labels, who=[f"p{n % 11}" for n in range(30)])
    for number, kind in enumerate(KINDS):
        (tmp_path / "x" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / kind / f"{number}.png").touch()
    return tmp_path


def of(source: str, **changed: Any) -> Any:
    return dataset_options(SOURCES[source] | changed)


@pytest.mark.parametrize("source", SOURCES)
def test_checks_leave_tables_as_they_are_and_other_options_do_not(source: str) -> None:
    """An option makes tables stale only if it changes the tables, in every source."""
    tables, images = of(source).preparation_params(), of(source).image_params()
    checks: list[dict[str, Any]] = [
        {"delta": 1e-6},
        {"verify": "hash"},
        {"duplicates": "warn", "missing_classes": "warn"},
        {"metric": "accuracy"},
        {"expect": {"train": 9, "test": 3, "classes": 2}},
        {"same_units_as": "other"},
    ]
    if source != "embeddings":  # vectors have no text encoder
        checks.append({"prompts": ["a {c}"], "prompt_names": {"cat": "tabby"}})
    for changed in checks:
        assert of(source, **changed).preparation_params() == tables, changed
        assert of(source, **changed).image_params() == images, changed
    part = of(source, subsample={"fraction": 0.5})
    assert part.preparation_params() != tables
    assert part.image_params() == images
    assert without_subsample(part).preparation_params() == tables
    if source != "url":  # the split of a url belongs to its layout
        by_id = of(source, split_by="id")
        assert by_id.preparation_params() != tables
        assert by_id.image_params() == images
        assert of(source, split_by="class").preparation_params() == tables


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"subsample": {"fraction": 0.5, "per_class": 3}}, "subsample"),
        ({"subsample": {"fraction": 1.5}}, "subsample.fraction"),
        ({"subsample": {"seed": 1}}, "subsample"),
        ({"subsample": {"fractions": {True: 0.5}}}, "subsample.fractions"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"expect": {"classes": 1}}, "expect.classes"),
        ({"metric": "f1"}, "metric"),
        ({"verify": "look"}, "verify"),
        ({"pth": "x"}, "pth"),
    ],
)
def test_every_source_refuses_wrong_values_by_their_key(
    source: str, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named.replace(".", "[.]")):
        of(source, **changed)


@pytest.mark.parametrize("source", ["csv", "embeddings", "imagefolder", "parquet"])
def test_files_tell_the_numbers_of_rows_and_classes(source: str) -> None:
    """Every kind of file has 20 cats and 10 dogs, a fifth of them in the test split."""
    options = of(source)
    options.check_files()
    assert options.count_rows() == count_used_rows(options) == (24, 6)
    assert options.count_classes() == 2
    assert options.count_class_units().train == options.class_rows() == {"cat": 16, "dog": 8}
    assert options.count_class_units().test == {"cat": 4, "dog": 2}
    # larger test fractions, and the numbers of dogs they would test
    assert all(
        units["dog"] == round(10 * at) and at > 0.2
        for at, units in options.count_class_units().test_at.items()
    )
    assert of(source, test_fraction=0.4).count_rows() == (18, 12)
    assert count_used_rows(of(source, subsample={"per_class": 4})) == (8, 6)
    assert count_used_rows(of(source, subsample={"fraction": 0.5})) is None
    with pytest.raises(ConfigError, match="subsample: .*dog"):
        count_used_rows(of(source, subsample={"per_class": 9}))
    with pytest.raises(ConfigError, match="subsample: .*owl"):
        count_used_rows(of(source, subsample={"fractions": {"owl": 0.5}}))


@pytest.mark.parametrize("source", ["csv", "embeddings", "parquet"])
def test_patients_are_counted_and_kept_together(source: str) -> None:
    options = of(source, unit_column="who", split_by="id")
    assert options.named_people().column == "who"
    trained = options.count_units()
    assert 0 < trained < 11
    # patients p0 to p7 have three images each, p8 to p10 two
    assert 2 * trained <= options.count_rows()[0] <= 3 * trained
    assert sum(options.count_rows()) == 30
    least = of(source, unit_column="who", split_by="id", max_images_per_patient=1)
    assert least.count_rows() == (trained, options.count_rows()[1])
    assert least.named_people().most_images == 1
    assert count_used_rows(of(source, unit_column="who", subsample={"per_class": 2})) is None
    assert of(source, unit_column="who", unit="image").named_people().unit == "image"
    assert of(source).named_people().unit is None
    assert of(source, unit="image").named_people().unit == "image"


def test_expected_sizes_are_cut_by_limits_and_parts() -> None:
    sizes = {"train": 9, "test": 3, "classes": 2}
    hub = of("huggingface", expect=sizes, test="t", limit={"train": 50, "test": 2})
    assert hub.expected_counts().model_dump() == sizes | {"test": 2}
    assert hub.count_rows() == (9, 2)
    split = of("huggingface", expect=sizes, limit={"train": 5})
    assert split.expected_counts().model_dump() == {"train": None, "test": None, "classes": 2}
    part = of("csv", expect=sizes, subsample={"per_class": 1})
    assert part.expected_counts().model_dump() == sizes | {"train": None}
    assert of("huggingface", expect=sizes, subsample={"per_class": 1}).count_rows() is None
    assert of("huggingface", expect={"train": 9}).count_rows() is None
    assert of("csv").expected_counts().model_dump() == dict.fromkeys(sizes)


def test_every_class_needs_test_rows_where_the_metric_covers_all() -> None:
    three = {"class_names": ["cat", "dog", "owl"]}
    assert needs_every_class(of("csv"))
    assert not needs_every_class(of("csv", **three))
    assert needs_every_class(of("csv", **three, metric="macro_accuracy"))
    assert needs_every_class(of("csv", **three, metric="auc"))
    assert not needs_every_class(of("csv", metric="accuracy"))
    several = {"label_column": None, "class_names": None, "label_columns": ["a", "b", "c"]}
    assert needs_every_class(of("csv", **several))


# The metric by which a cell is summarised.


@pytest.mark.parametrize(
    ("counts", "imbalance"),
    [((300, 150), 2), ((301, 150), 301 / 150), ((300, 200, 0), 1.5), ((300, 0), 1), ((), 1)],
)
def test_imbalance_is_the_ratio_of_the_classes_with_rows(
    counts: Sequence[int], imbalance: float
) -> None:
    assert compute_imbalance(counts) == imbalance


@given(st.lists(st.integers(0, 50), max_size=5), st.sampled_from([None, 2, 3]))
@example([8, 0, 4], 3)
def test_accuracy_is_the_default_metric_only_for_class_ratios_up_to_two(
    counts: list[int], classes: Any
) -> None:
    present = [count for count in counts if count]
    balanced = not present or max(present) <= 2 * min(present)
    found = headline_metric(None, num_classes=classes, multi_label=False, test_counts=counts)
    other = "auc" if classes == 2 else "macro_accuracy"
    assert found == ("accuracy" if balanced else other), counts
    several = headline_metric(None, num_classes=classes, multi_label=True, test_counts=counts)
    assert several == "auc"


@pytest.mark.parametrize("metric", ["accuracy", "auc", "macro_accuracy"])
@pytest.mark.parametrize("classes", [None, 2, 3])
@pytest.mark.parametrize("several", [False, True])
def test_a_given_metric_is_accepted_only_if_it_is_defined(
    metric: Headline, classes: int | None, several: bool
) -> None:
    said = None
    if metric == "auc" and classes == 3 and not several:
        said = "auc with 3 classes and one label per row is not defined; write metric: macro_acc"
    if metric == "macro_accuracy" and several:
        said = "macro_accuracy needs one label per row.*use auc or accuracy"
    facts: dict[str, Any] = {"num_classes": classes, "multi_label": several}
    if said is None:
        assert headline_metric(metric, **facts, test_counts=(9, 1)) == metric
    else:
        with pytest.raises(ConfigError, match=said):
            headline_metric(metric, **facts)
