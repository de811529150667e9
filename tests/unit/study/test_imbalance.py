"""The datasets that a study's `imbalance` adds, and the blocks that are refused."""

from __future__ import annotations

from typing import Any

from dpprobe.study.imbalance import rare_classes
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

BLOCK = {"datasets": ["digits"], "classes": [3, "8"], "fractions": [0.05, 1, 0.5]}
ADDED = ["digits_3_0p5", "digits_3_0p05", "digits_8_0p5", "digits_8_0p05"]


def study(block: dict[str, Any] | None = BLOCK, **changes: Any) -> Study:
    return load_study({**STUDY, "imbalance": block, **changes})


def test_each_class_and_fraction_is_a_dataset() -> None:
    loaded = study()
    check_study(loaded)
    assert list(loaded.datasets) == ["digits", *ADDED]
    part = loaded.datasets["digits_3_0p05"].subsample
    assert part is not None
    assert part.fractions == {"3": 0.05}
    assert [rare.name for rare in rare_classes(loaded.imbalance)] == ADDED
    assert loaded.whole_datasets() == dict.fromkeys(ADDED, "digits")
    assert {cell.dataset for cell in loaded.list_cells()} == {"digits", *ADDED}
    assert list(study(None).datasets) == ["digits"]
    assert rare_classes(None) == []


def test_a_part_is_its_wholes_in_all_else() -> None:
    whole = {"source": "sklearn", "name": "digits", "delta": 1e-6, "split_seed": 3}
    loaded = study(datasets={"digits": whole})
    assert loaded.dataset_delta("digits_3_0p5") == 1e-6
    assert loaded.datasets["digits_3_0p5"].without_subsample() == loaded.datasets["digits"]
    other = study(datasets={"digits": whole, "again": {**whole, "split_seed": 4}})
    assert other.whole_datasets()["digits_3_0p5"] == "digits"
    alone = study(None, datasets={"part": {**whole, "subsample": {"per_class": 5}}})
    assert alone.whole_datasets() == {}


def test_published_results_are_those_of_whole_datasets() -> None:
    whole = {"catalog": "cifar10"}
    loaded = study(
        {"datasets": ["cifar10"], "classes": ["cat"], "fractions": [0.5]},
        datasets={"cifar10": whole},
    )
    assert loaded.published_names() == {"cifar10": "cifar10", "cifar10_cat_0p5": "cifar10_cat_0p5"}
