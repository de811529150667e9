"""Cells whose unit of privacy is a patient, and the price of patients where it is an image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism
from dpprobe.training.tasks import Job
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import make_job, plan_job, run_job

CLASSES, DIMENSION = 3, 6
# Patient p has 1 to 20 images, all of one class.
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


@dataclass(frozen=True)
class Run:
    folder: Path
    job: Job

    @property
    def plans(self) -> Path:
        return self.folder / "plans.json"

    def plan(self, **changes: Any) -> None:
        job = replace(self.job, **changes)
        images = IMAGES["train"]
        n = len(images) if job.unit == "patient" else sum(images)
        plan_job(job, n, self.plans, self.folder / "calibration")

    def train(self, **changes: Any) -> None:
        run_job(self.folder, replace(self.job, **changes), self.plans)

    def read(self, method: str, name: str, epsilon: str = "4") -> dict[str, Any]:
        path = self.folder / f"cells/toy/none/{method}/eps-{epsilon}/{name}.json"
        values: dict[str, Any] = json.loads(path.read_text())
        return values


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_features(tmp_path)
    return Run(tmp_path, make_job(methods=METHODS, unit="patient"))


def composition(statement: Mapping[str, Any]) -> list[Mechanism]:
    keys = ("name", "released", "sensitivity", "noise_multiplier", "sample_rate", "count")
    return [Mechanism(**{key: item[key] for key in keys}) for item in statement["mechanisms"]]


def test_patients_are_the_unit_of_every_statement(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dpprobe.training.job_features.chunk_rows",
        lambda rows, _: [(start, min(start + 7, rows)) for start in range(0, rows, 7)],
    )
    run.plan()
    run.train()
    for method in METHODS:
        statement = run.read(method, "privacy")
        assert statement["unit_of_privacy"].startswith("one patient")
        assert "replacing the rows of one patient (all of their" in statement["promise"]
        assert statement["n"] == 120
        assert statement["patients"] is None
        assert any("number of training patients" in fact for fact in statement["public"])
        assert any("how many each patient has" in line for line in statement["not_covered"])
        for item in statement["mechanisms"]:
            assert "one patient's rows" in item["sensitivity_of"]
            assert "patients" in item["sampling"]
        price = accountants.compute_epsilon(composition(statement), 1e-4, "pld")
        assert price <= statement["epsilon_realised"] <= 4
    for method in ("sampled", "full"):  # whose test rows count by patient, also while they train
        folder = run.folder / f"cells/toy/none/{method}/eps-4"
        history = pq.read_table(folder / "history.parquet").to_pandas().groupby("seed_index")
        accuracies = [seed["accuracy"] for seed in run.read(method, "metrics")["seeds"]]
        assert history["test_accuracy"].last().tolist() == pytest.approx(accuracies, abs=1e-6)
    (gradients,) = run.read("sampled", "privacy")["mechanisms"]
    assert gradients["sample_rate"] == 20 / 120  # of patients
    assert run.read("full", "metrics")["rows"]["train"] == sum(IMAGES["train"])


def test_crops_make_cells_stale_and_keep_every_promise(run: Run) -> None:
    """Of a patient's images, each in several random parts: one unit at the price of one part."""

    def read_cells() -> dict[str, tuple[Any, Any]]:
        return {
            method: (run.read(method, "privacy"), run.read(method, "metrics")["fingerprint"])
            for method in METHODS
        }

    run.plan()
    run.train()
    before = read_cells()
    write_features(run.folder, crops=3)
    run.train()
    for method, (now, fingerprint) in read_cells().items():
        promise, stale = before[method]
        for key in ("epsilon_realised", "mechanisms", "unit_of_privacy", "promise", "n"):
            assert now[key] == promise[key]
        assert fingerprint != stale


def test_features_in_memory_and_streamed_give_the_same_second_order_cells(run: Run) -> None:
    second = {"second": METHODS["second"]}
    run.plan(methods=second)
    run.train(methods=second)
    kept = run.read("second", "metrics")
    (run.folder / "cells/toy/none/second/eps-4/metrics.json").unlink()
    run.train(methods=second, memory_mb=0)
    assert run.read("second", "metrics")["files"] == kept["files"]


def test_a_promise_for_images_says_its_worth_to_patients(run: Run) -> None:
    image = {"unit": "image", "patients": {"images": 20}}
    run.plan(**image)
    run.train(**image)
    for method in METHODS:
        statement = run.read(method, "privacy")
        assert statement["unit_of_privacy"] == "one training image"
        assert statement["n"] == sum(IMAGES["train"])
        price = accountants.group_epsilon(composition(statement), 1e-4, 20)
        assert statement["patients"] == {"images": 20, "epsilon": pytest.approx(price, rel=1e-4)}
        assert statement["patients"]["epsilon"] > 4
        assert "differentially private to one image; to a patient" in statement["promise"]
        assert (
            "to a patient with 20 training images, the most that any patient has here, the promise "
            "is (" in statement["promise"]
        )
    full = run.read("full", "privacy")
    mu = 20 * accountants.gaussian_mu(composition(full))
    exact = accountants.gaussian_epsilon(mu, 1e-4)
    assert full["patients"]["epsilon"] == pytest.approx(exact, rel=1e-4)
