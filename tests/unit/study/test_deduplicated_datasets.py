"""Studies without near-duplicates: names, and checks of what is known beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.deduplicated_datasets import left_out, other_name
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.digits_file import digits_file
from tests.support.small_study import STUDY

SEEN = {"seen": {"source": "sklearn", "split_seed": 1}}


def study(remove: str | None = "pixels", **more: Any) -> Study:
    overlap = {"public": ["seen"], "remove": remove}
    return load_study({**STUDY, "public_datasets": SEEN, "overlap": overlap, **more})


def test_all_rows_have_a_second_name() -> None:
    digits = STUDY["datasets"]["digits"]
    datasets = {"digits": digits, "part": {**digits, "subsample": {"per_class": 5}}}
    made = study(datasets=datasets)
    assert made.before_removal() == {"digits": "digits_all_rows", "part": "part_all_rows"}
    assert [*made.all_datasets()] == [
        "digits", "part", "digits_all_rows", "part_all_rows", "seen",
    ]  # fmt: skip
    # a part is one of all rows, and its near-duplicates are looked for in it
    assert made.whole_datasets() == {"part_all_rows": "digits_all_rows"}
    assert {cell.dataset for cell in made.list_cells()} == {"digits", "part"}
    assert other_name("digits_all_rows") == "digits"
    assert other_name("digits") == "digits_all_rows"


def test_rare_classes_are_made_of_all_rows_too() -> None:
    rare = {"datasets": ["digits"], "classes": ["3"], "fractions": [0.5]}
    assert study(imbalance=rare).whole_datasets() == {"digits_3_0p5_all_rows": "digits_all_rows"}


def test_without_removal_nothing_has_a_second_name() -> None:
    kept = study(remove=None)
    assert kept.before_removal() == {}
    assert [*kept.all_datasets()] == ["digits", "seen"]
    assert left_out(kept.overlap) is left_out(None) is None
    assert left_out(study().overlap) == {
        "backbone": "pixels", "threshold": 0.95, "public": ["seen"],
    }  # fmt: skip


def test_delta_is_held_against_n_by_the_job_that_counts_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    public = {"seen": digits_file(tmp_path / "seen.parquet", mirrored=True)}
    delta = 1.01 / 1438  # above 1/n of all rows, not of fewer
    with pytest.raises(ConfigError, match="above 1/n"):
        check_study(study(remove=None, delta=delta, public_datasets=public))
    assert check_study(study(delta=delta, public_datasets=public)) == []
    methods = {"sgd": {"head": "sgd", "batch_size": 100_000}}
    with pytest.raises(ConfigError, match="batch"):  # larger than all rows, so than what is left
        check_study(study(methods=methods, public_datasets=public))


def test_features_of_all_rows_are_no_public_file(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    public = {"seen": digits_file(tmp_path / "seen.parquet", mirrored=True)}
    path = tmp_path / "results/features/digits_all_rows/pixels/train/manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    method = {"head": "feature_covariance", "public_covariance": str(path)}
    with pytest.raises(ConfigError, match="public_covariance: "):
        check_study(study(methods={"some": method}, public_datasets=public))


def test_a_source_under_the_name_of_all_rows_is_not_written_over(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    public = {"seen": digits_file(tmp_path / "seen.parquet", mirrored=True)}
    folder = tmp_path / "data/digits_all_rows"
    folder.mkdir(parents=True)
    source = {**digits_file(folder / "train.parquet"), "train": str(folder / "train.parquet")}
    datasets = {"digits": source}
    check_study(study(remove=None, datasets=datasets, public_datasets=public))
    with pytest.raises(ConfigError, match="would overwrite this file; move it elsewhere"):
        check_study(study(datasets=datasets, public_datasets=public))
