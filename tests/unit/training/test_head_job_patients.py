"""Patients as units, in inputs of fits and in cells, and their guarantee if images are units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism, Patients
from dpprobe.privacy.target import Target
from dpprobe.training.fit_inputs import FitInputs
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import make_job
from tests.unit.training.test_head_job import Run

CLASSES, DIMENSION = 3, 6
# Patient p has 1 to 20 training images, all of the same class.
IMAGES = {"train": [1 + 7 * p % 20 for p in range(120)], "test": [1 + p % 5 for p in range(30)]}
METHODS = {
    "auto": method_options({"head": "auto"}),
    "sampled": method_options({"head": "sgd", "batch_size": 20, "steps": 12}),
    "full": method_options({"head": "sgd", "batch_size": "full", "steps": 4}),
    "second": method_options({"head": "feature_covariance", "steps": 2}),
}


def write_features(folder: Path, *, named: bool = True, crops: int = 0) -> None:
    for number, (split, images) in enumerate(IMAGES.items()):
        patients = np.repeat(np.arange(len(images)), images)
        labels = (patients % CLASSES).astype(np.int64)
        features = separable(labels, DIMENSION, seed=number)
        units = [f"{split} {patient}" for patient in patients] if named else None
        generator = np.random.default_rng(10 + number)
        layers = {
            f"crop_{crop:02d}": features + generator.normal(size=features.shape)
            for crop in range(crops if split == "train" else 0)
        }
        write_split(folder / split, features, labels, units=units, layers=layers)


@pytest.fixture
def run(tmp_path: Path, calibration: Path) -> Run:
    write_features(tmp_path)
    units = {"image": sum(IMAGES["train"]), "patient": len(IMAGES["train"])}
    return Run(tmp_path, make_job(methods=METHODS, unit="patient"), calibration, units)


def composition(statement: Mapping[str, Any]) -> list[Mechanism]:
    keys = ("name", "sensitivity", "noise_multiplier", "sample_rate", "count")
    return [Mechanism(**{key: item[key] for key in keys}) for item in statement["mechanisms"]]


def test_patients_are_the_unit_of_every_statement(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dpprobe.training.job_features.chunk_rows",
        lambda rows, _: [(start, min(start + 7, rows)) for start in range(0, rows, 7)],
    )
    run.train()
    for method in METHODS:
        statement = run.read(method, "privacy")
        assert statement["unit"] == "patient"
        assert statement["n"] == 120
        assert statement["patients"] is None
        assert {"n", "units"} <= {*statement["public"]}
        assert {"rows_per_unit", "copies_of_units"} <= {*statement["not_covered"]}
        price = accountants.compute_epsilon(composition(statement), 1e-4, "pld")
        assert price <= statement["epsilon_realised"] <= 4
    for method in ("sampled", "full"):  # test rows count by patient, also during training
        folder = run.folder / f"cells/toy/none/{method}/eps-4"
        history = pq.read_table(folder / "history.parquet").to_pandas().groupby("seed_index")
        accuracies = [seed["accuracy"] for seed in run.read(method, "metrics")["seeds"]]
        assert history["test_accuracy"].last().tolist() == pytest.approx(accuracies, abs=1e-6)
    (gradients,) = run.read("sampled", "privacy")["mechanisms"]
    assert gradients["sample_rate"] == 20 / 120  # a share of patients
    assert run.read("full", "metrics")["rows"]["train"] == sum(IMAGES["train"])


def test_crops_make_cells_stale_and_keep_every_promise(run: Run) -> None:
    """A patient's images in several random crops are one unit, with the guarantee of one crop."""

    def read_cells() -> dict[str, tuple[Any, Any]]:
        return {
            method: (run.read(method, "privacy"), run.read(method, "metrics")["fingerprint"])
            for method in METHODS
        }

    run.train()
    before = read_cells()
    write_features(run.folder, crops=3)
    run.train()
    for method, (now, fingerprint) in read_cells().items():
        promise, stale = before[method]
        for key in ("epsilon_realised", "mechanisms", "unit", "not_covered", "n"):
            assert now[key] == promise[key]
        assert fingerprint != stale


def test_a_promise_for_images_says_its_worth_to_patients(run: Run) -> None:
    run.train(unit="image", patients=Patients(images=20))
    for method in METHODS:
        statement = run.read(method, "privacy")
        assert statement["unit"] == "image"
        assert statement["n"] == sum(IMAGES["train"])
        price = accountants.group_epsilon(composition(statement), 1e-4, 20)
        assert statement["patients"] == {"images": 20, "epsilon": pytest.approx(price, rel=1e-4)}
        assert statement["patients"]["epsilon"] > 4
    full = run.read("full", "privacy")
    mu = 20 * accountants.gaussian_mu(composition(full))
    exact = accountants.gaussian_epsilon(mu, 1e-4)
    assert full["patients"]["epsilon"] == pytest.approx(exact, rel=1e-4)


ROWS, PATIENTS = sum(IMAGES["train"]), len(IMAGES["train"])


def inputs(folder: Path, unit: str, *, named: bool = True) -> FitInputs:
    write_features(folder, named=named)
    return FitInputs(FeatureStore(folder / "train/manifest.json"), unit)


@pytest.mark.parametrize(("unit", "n"), [("image", ROWS), ("patient", PATIENTS)])
def test_facts_are_of_as_many_units_as_there_are(tmp_path: Path, unit: str, n: int) -> None:
    of_unit = inputs(tmp_path, unit)
    assert of_unit.read_facts(Target(n=of_unit.n, unit=unit, epsilon=2.0, delta=1e-4)) == DataFacts(
        n=n,
        dimension=DIMENSION,
        classes=CLASSES,
        multi_label=False,
        epsilon=2.0,
        delta=1e-4,
        unit=unit,
    )
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
    """Crops are read when steps need them, or streamed if all together exceed the memory."""
    write_features(tmp_path)
    whole = FeatureStore(tmp_path / "train/manifest.json")
    values = whole.read()
    crops = {f"crop_{number:02d}": values + number + 1 for number in range(11)}
    manifest = write_split(
        tmp_path / "crops/train", values, whole.labels, units=whole.units, layers=crops
    )
    of_unit = FitInputs(FeatureStore(manifest), unit)
    most = 12 * 4 * values.size / 1e6  # rows and all crops as float32
    for memory_mb, streamed in ((most, False), (most - 1e-6, True)):
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


def test_patients_with_too_many_images_or_without_names_are_refused(tmp_path: Path) -> None:
    of_images = inputs(tmp_path, "image")
    of_images.check_patients(None)
    of_images.check_patients(max(IMAGES["train"]))
    of_images.check_patients(max(IMAGES["train"]) + 1)
    with pytest.raises(DataError, match="a patient has more training"):
        of_images.check_patients(max(IMAGES["train"]) - 1)
    unnamed = inputs(tmp_path, "patient", named=False)
    with pytest.raises(DataError, match="the rows of this store name none"):
        _ = unnamed.units
    with pytest.raises(DataError, match="the rows of this store name none"):
        unnamed.check_patients(Patients(images=20).images)
