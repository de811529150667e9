"""Studies drafted from parquet files."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.data.parquet import Options
from tests.unit.draft.conftest import Desk

NAMES = {"info": {"features": {"label": {"names": ["benign", "malignant"], "_type": "ClassLabel"}}}}


def write(desk: Desk, file: str, *, names: bool = True, **columns: Any) -> None:
    images = [{"bytes": b"x", "path": None}] * 60
    values = {"image": images, "label": [int(n % 11 == 0) for n in range(60)], **columns}
    table = pa.table(values)
    if names:
        table = table.replace_schema_metadata({"huggingface": json.dumps(NAMES)})
    pq.write_table(table, desk.folder / file)


def options(desk: Desk) -> Options:
    (dataset,) = desk.study("skin.yaml").datasets.values()
    assert isinstance(dataset, Options)
    return dataset


def test_a_file_that_names_its_classes_becomes_a_study(desk: Desk) -> None:
    patients = [100 + n // 2 for n in range(60)]  # by these names two malignant ones are tested
    write(desk, "skin.parquet", patient_id=patients, sex=["f", "m"] * 30)
    printed = desk.init("skin.parquet")
    assert "60 images of 30 patients, 2 classes" in printed
    assert "malignant          6 images:" in printed
    assert "(the smallest)" in printed
    dataset = options(desk)
    assert dataset.unit_column == "patient_id"
    assert dataset.group_columns == ("sex",)
    assert dataset.class_names is None
    assert dataset.metric == "auc"


def test_patients_may_be_bytes_but_not_lists(desk: Desk) -> None:
    write(desk, "skin.parquet", patient_id=[b"p%d" % (n // 2) for n in range(60)])
    assert "60 images of 30 patients, 2 classes" in desk.init("skin.parquet")
    lists = [[f"p{n // 2}"] for n in range(60)]
    write(desk, "skin.parquet", patient_id=lists)
    assert "column patient_id is not used: its values are" in desk.init("skin.parquet", "--force")
    write(desk, "skin.parquet", who=lists)
    assert "who: skin.parquet: its values are" in desk.init("skin.parquet", "--patient", "who")


def test_nan_is_a_blank(desk: Desk) -> None:
    write(desk, "skin.parquet", patient_id=[float("nan"), *(float(n // 2) for n in range(1, 60))])
    printed = desk.init("skin.parquet")
    assert "60 images of 30 patients, 2 classes" in printed
    assert "column patient_id is blank in 1 row," in printed


def test_classes_without_names_are_numbered_with_a_comment(desk: Desk) -> None:
    write(desk, "skin.parquet", names=False)
    desk.init("skin.parquet")
    assert options(desk).class_names == ("0", "1")
    assert "The file has no class names" in (desk.folder / "skin.yaml").read_text()


def test_a_test_file_beside_is_used(desk: Desk) -> None:
    (desk.folder / "skin").mkdir()
    write(desk, "skin/train.parquet")
    write(desk, "skin/test.parquet")
    assert "120 images, 2 classes" in desk.init("skin/train.parquet")
    assert options(desk).test == "skin/test.parquet"


def test_mistakes_end_it_with_a_line(desk: Desk) -> None:
    desk.file("skin.parquet")
    assert "skin.parquet: not a readable parquet file" in desk.init("skin.parquet")
    write(desk, "skin.parquet", label=["a", "b"] * 30)
    assert "labels are string; store integers" in desk.init("skin.parquet")
    write(desk, "skin.parquet", names=False, label=[[n % 2] for n in range(59)] + [[0, 1]])
    assert "column label has lists of class numbers" in desk.init("skin.parquet")
    write(desk, "skin.parquet", fold=["train", "val"] * 30)
    assert "column fold is not used" in desk.init("skin.parquet")
    twice = pa.table([["x"], [1], [1]], names=["image", "label", "label"])
    pq.write_table(twice, desk.folder / "skin.parquet")
    assert "two columns are named 'label'" in desk.init("skin.parquet")
    write(desk, "skin.parquet")
    assert "a parquet file contains its images" in desk.init("skin.parquet", "--root", "x")
    pq.write_table(pa.table({"image": ["x"], "kind": [1]}), desk.folder / "skin.parquet")
    assert "name the column of labels with --label: image, kind" in desk.init("skin.parquet")
