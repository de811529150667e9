"""What every fit starts from: rows, their units of privacy, public facts and the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.facts import DataFacts
from dpprobe.privacy.plan import Patients
from dpprobe.privacy.target import Target
from dpprobe.training.fit_inputs import FitInputs
from tests.support.feature_stores import write_split
from tests.unit.training.test_head_job_patients import CLASSES, DIMENSION, IMAGES, write_features

ROWS, PATIENTS = sum(IMAGES["train"]), len(IMAGES["train"])


def inputs(folder: Path, unit: str, *, named: bool = True) -> FitInputs:
    write_features(folder, named=named)
    return FitInputs(FeatureStore(folder / "train/manifest.json"), unit)


@pytest.mark.parametrize(("unit", "n"), [("image", ROWS), ("patient", PATIENTS)])
def test_facts_are_of_as_many_units_as_there_are(tmp_path: Path, unit: str, n: int) -> None:
    of_unit = inputs(tmp_path, unit)
    assert of_unit.read_facts(Target(n=of_unit.n, unit=unit, epsilon=2.0, delta=1e-4)) == DataFacts(
        n=n, dimension=DIMENSION, classes=CLASSES, multi_label=False, epsilon=2.0, delta=1e-4,
        unit=unit,
    )  # fmt: skip
    assert of_unit.n == n


def test_rows_of_a_patient_weigh_as_one_in_memory_and_streamed(tmp_path: Path) -> None:
    of_patients = inputs(tmp_path, "patient")
    held = of_patients.read_rows(device="cpu", memory_mb=100)
    streamed = of_patients.read_rows(device="cpu", memory_mb=0)
    assert held.n == streamed.n == PATIENTS
    for rows in (held, streamed):
        assert rows.units is of_patients.units
        assert torch.equal(rows.labels, held.labels)
    assert len(held.labels) == ROWS


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_crops_have_the_rows_labels_and_units(tmp_path: Path, unit: str) -> None:
    """Read when steps ask for them, or streamed where all of them together are too many."""
    write_features(tmp_path)
    whole = FeatureStore(tmp_path / "train/manifest.json")
    values = whole.read()
    crops = {f"crop_{number:02d}": values + number + 1 for number in range(11)}
    manifest = write_split(
        tmp_path / "crops/train", values, whole.labels, units=whole.units, layers=crops
    )
    of_unit = FitInputs(FeatureStore(manifest), unit)
    megabytes = values.nbytes / 1e6
    for memory_mb, streamed in ((13 * megabytes, False), (11 * megabytes, True)):
        rows = of_unit.read_rows(device="cpu", memory_mb=memory_mb)  # type: ignore[arg-type]
        assert rows.is_streamed == streamed
        assert len(rows.crops) == 11
        for number, crop in enumerate(rows.crops):
            assert crop.is_streamed == streamed
            (start, block), *_ = crop.read_blocks(10**9)
            assert torch.equal(block, torch.from_numpy(values[start : len(block)] + number + 1))
            assert torch.equal(crop.labels, rows.labels)
            assert crop.units is rows.units
            assert crop.n == rows.n
    assert FitInputs(whole, unit).read_rows(device="cpu", memory_mb=1).crops == ()


def test_a_patient_with_more_images_than_are_priced_is_refused(tmp_path: Path) -> None:
    of_images = inputs(tmp_path, "image")
    of_images.check_patients(None)
    of_images.check_patients(max(IMAGES["train"]))
    with pytest.raises(DataError, match="a patient has more training"):
        of_images.check_patients(max(IMAGES["train"]) - 1)


def test_features_that_name_no_patients_are_refused(tmp_path: Path) -> None:
    unnamed = inputs(tmp_path, "patient", named=False)
    with pytest.raises(DataError, match="the rows of this store name none"):
        _ = unnamed.units
    with pytest.raises(DataError, match="the rows of this store name none"):
        unnamed.check_patients(Patients(images=20).images)
