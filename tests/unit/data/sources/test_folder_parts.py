"""Names of folders and files that stand for parts of a dataset, such as train and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.data.sources import folder_parts

KINDS = {"+": "train", "-": "test", "~": "held out"}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("train+|test-", "train|test"),
        ("Training+|Testing-", "Training|Testing"),
        ("TRAIN+|dev~", "TRAIN|dev"),
        ("train+|tst-|val~", "train|tst"),
        ("trainval+|hold-out~", "trainval|hold-out"),
        ("Held Out~|trn+", "trn|Held Out"),
        ("TrainSet+|Test Set-", "TrainSet|Test Set"),
        ("train_images+|test_images-", "train_images|test_images"),
        ("01_train+|02_test-", "01_train|02_test"),
        ("train2017+|val2017~", "train2017|val2017"),
        # additional words are allowed if both parts have them
        ("seg_train+|seg_test-|seg_pred", "seg_train|seg_test"),
        ("mnist-training+|mnist-testing-|notes", "mnist-training|mnist-testing"),
        ("x_train|y_test", ""),
        ("train_station|train_interior", ""),
        ("train+|seg_train|seg_test", ""),
        # each part needs exactly one folder, else none is chosen
        ("train+", ""),
        ("train+|test-|Test-", ""),
        ("train+|val~|valid~", ""),
        # next to "invalid", "valid" is a class
        ("invalid|valid|train+", ""),
        ("a|b", ""),
        ("", ""),
    ],
)
def test_parts_are_recognised(names: str, chosen: str) -> None:
    """In the cases, names of parts end in + for train, - for test and ~ for held out."""
    listed = [name.rstrip("+-~") for name in names.split("|")]
    found = folder_parts.find_parts(listed)
    assert found == {
        name.rstrip("+-~"): KINDS[name[-1]] for name in names.split("|") if name[-1:] in KINDS
    }
    pair = chosen.split("|") if chosen else []
    assert folder_parts.choose_parts(found) == dict(zip(("train", "test"), pair, strict=bool(pair)))


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        ("train.csv test.csv", "train.csv", "test.csv"),
        ("a_train.csv a_test.csv train.csv", "a_train.csv", "a_test.csv"),
        ("train-set.csv test-set.csv", "train-set.csv", "test-set.csv"),
        ("train.train.csv test.train.csv", "train.train.csv", "test.train.csv"),
        ("Training.csv Testing.csv", "Training.csv", "Testing.csv"),
        ("Training.csv val.csv", "Training.csv", "val.csv"),
        ("Training.csv val.csv", "val.csv", None),
        ("train.csv other.csv", "train.csv", None),
        ("Training.csv Testing.tsv", "Training.csv", None),
        ("Training.csv Testing.csv Test.csv", "Training.csv", None),
        ("test.csv", "test.csv", None),
    ],
)
def test_a_training_file_s_test_file_is_next_to_it(
    tmp_path: Path, files: str, train: str, test: str | None
) -> None:
    for name in files.split():
        (tmp_path / name).touch()
    found = folder_parts.find_test_file(tmp_path / train)
    assert found == (None if test is None else tmp_path / test)
