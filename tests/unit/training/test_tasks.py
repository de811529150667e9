"""A job reads its plans and the keys of its study, and refuses other jobs' plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import DataError, PrivacyError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.heads.registry import method_options
from dpprobe.json_values import hash_value
from dpprobe.privacy.plan import Patients
from dpprobe.privacy.target import Target, Terms
from dpprobe.study.study_file import load_study
from dpprobe.training.cell_task import Asked
from dpprobe.training.tasks import JobFiles, OpenedJob, Request, open_job
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import change_job, list_files, make_job, plan_job

FULL = {"head": "sgd", "batch_size": "full", "steps": 3}
ROWS = 60  # of 20 patients


@pytest.fixture
def opened(tmp_path: Path, calibration: Path) -> Callable[..., OpenedJob]:
    """Returns a function that opens a job, with changes, and plans for (4, 1e-3) on 60 images."""
    for number, (split, rows) in enumerate({"train": ROWS, "test": 9}.items()):
        labels = np.arange(rows) % 3
        units = [f"{split} {row // 3}" for row in range(rows)]
        write_split(tmp_path / split, separable(labels, 4, seed=number), labels, units=units)
    job = make_job(delta=1e-3, methods={"full": method_options(FULL)})
    plan_job(job, ROWS, tmp_path / "plans.json", calibration)

    def reopen(**changes: Any) -> OpenedJob:
        return open_job(change_job(job, **changes), list_files(tmp_path, tmp_path / "plans.json"))

    return reopen


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], *, signed: bool = True) -> None:
    """Edits the plans, and updates their hash if `signed`."""
    record = read_json(folder / "plans.json")
    digest = record.pop("sha256")
    change(record)
    digest = hash_value(record) if signed else digest
    write_json(folder / "plans.json", {**record, "sha256": digest})


def test_a_job_has_the_plan_of_each_method(opened: Callable[..., OpenedJob]) -> None:
    job = opened()
    assert job.planned_methods == ["full"]
    assert job.failure_reasons == {}
    plan = job.calibrated.plans["full"]
    assert (plan.n, plan.epsilon, plan.delta, plan.unit) == (ROWS, 4.0, 1e-3, "image")
    assert job.calibrated.together["full"] > plan.realised_epsilon, "the price of two seeds"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("n", 61, 60),
        ("unit", "patient", "image"),
        ("epsilon", 5.0, 4.0),
        ("delta", 1e-4, 1e-3),
        ("accountant", "rdp", "pld"),
    ],
)
def test_a_plan_of_another_target_is_refused(
    opened: Callable[..., OpenedJob], tmp_path: Path, name: str, value: Any, wanted: Any
) -> None:
    edit(tmp_path, lambda record: record["methods"]["full"]["plan"].update({name: value}))
    said = rf"plans.json: full: the plan's {name} is {value}, but the job needs {wanted}; delete it"
    with pytest.raises(DataError, match=said):
        opened()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "patient"}, "the plan's n is 60, but the job needs 20"),
        ({"patients": Patients(images=3)}, "the plan's patients is None, but the job needs .*3"),
        ({"patients": Patients(images=2)}, "max_images_per_patient is 2, but a patient has more"),
        (
            {"patients": Patients(images=None)},
            "the plan's patients is None, but the job needs .*None",
        ),
        ({"epsilon": "3"}, "epsilon is 4.0, but the job needs 3.0"),
        ({"delta": 2e-3}, "delta is 0.001, but the job needs 0.002"),
        ({"accountant": "rdp"}, "accountant is pld, but the job needs rdp"),
        (
            {"methods": {name: method_options(FULL) for name in ("full", "more")}},
            "this file has no plan for more; delete it and run again",
        ),
    ],
)
def test_a_job_with_another_target_is_refused(
    opened: Callable[..., OpenedJob], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        opened(**changes)


def set_method(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record["methods"]["full"].update(values)


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no plan": lambda record: record["methods"]["full"].pop("plan"),
    "no price": lambda record: record["methods"]["full"].pop("together"),
    "text for a price": set_method(together="much"),
    "a list": lambda record: record.update(methods=[3]),
    "older": lambda record: record.update(format_version=2),
    "other format": lambda record: record.update(format="dpprobe-cell"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_invalid_plan_file_is_reported_as_unreadable(
    opened: Callable[..., OpenedJob], tmp_path: Path, name: str
) -> None:
    edit(tmp_path, EDITS[name])
    with pytest.raises(PrivacyError, match=r"plans.json: unreadable .*; delete it and run again"):
        opened()


@pytest.mark.parametrize("change", [*EDITS.values(), set_method(together=9.0)])
def test_an_edit_without_its_hash_is_found(
    opened: Callable[..., OpenedJob], tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    edit(tmp_path, change, signed=False)
    with pytest.raises(PrivacyError, match="unreadable .*; delete it and run again"):
        opened()


def test_plans_of_a_newer_dpprobe_of_no_unit_or_of_a_failure(
    opened: Callable[..., OpenedJob], tmp_path: Path
) -> None:
    edit(tmp_path, lambda record: record["methods"]["full"]["plan"].update(unit="x"))
    with pytest.raises(PrivacyError, match="unit 'x'; choose one of image, patient"):
        opened()
    edit(tmp_path, lambda record: record["methods"].update(full={"error": "too few"}))
    job = opened()
    assert (job.planned_methods, job.failure_reasons) == ([], {"full": "too few"})
    edit(tmp_path, lambda record: record.update(format_version=6), signed=False)
    with pytest.raises(DataError, match="version 6, newer than this dpprobe's 5; use the newer"):
        opened()
    edit(tmp_path, lambda record: record.update(format_version=5, methods={}))
    with pytest.raises(DataError, match="no plan for full"):
        opened()


def test_the_target_of_a_job_s_plans() -> None:
    terms = {"delta": 1e-4, "accountant": "rdp", "unit": "patient", "patients": None}
    target = Target(n=200, unit="patient", epsilon=4.0, delta=1e-4, accountant="rdp", above=True)
    assert Terms.of_params("4", terms).make_target(200) == target
    images = Terms.of_params("inf", terms | {"unit": "image", "patients": {"images": 7}})
    assert images.make_target(9).patients == Patients(images=7)
    assert (images.epsilon, images.unit) == (math.inf, "image")
    with pytest.raises(PrivacyError, match="delta"):
        images.make_target(20_000, above=False)


def test_a_rule_s_job_has_the_study_s_keys_and_the_rule_s_methods() -> None:
    study = load_study(
        {
            "study": "mine",
            "datasets": {
                "a": {"source": "sklearn", "name": "digits", "metric": "macro_accuracy"},
                "b": {"source": "sklearn", "name": "digits"},
            },
            "backbones": {"vit": {"family": "timm", "model": "test_vit", "pretrained": False}},
            "methods": {"sgd": FULL},
            "epsilons": [1],
            "delta": 1e-4,
            "seeds": 11,
            "seed": 7,
        },
    )
    privacy = {"delta": 1e-5, "accountant": "rdp", "unit": "patient", "patients": {"images": 4}}
    methods = {"x": FULL, "y": FULL | {"steps": 7}}
    request = Request.of_rule(
        study,
        SimpleNamespace(dataset="a", backbone="vit", epsilon="1"),
        SimpleNamespace(methods=methods, privacy=privacy | {"mode": "release"}),
    )
    patients = Patients(images=4)
    assert request == Request(
        dataset="a",
        backbone="vit",
        epsilon="1",
        methods={name: method_options(values) for name, values in methods.items()},
        terms=Terms(unit="patient", epsilon=1.0, delta=1e-5, accountant="rdp", patients=patients),
        asked=Asked(study="mine", seeds=11, study_seed=7, mode="release", metric="macro_accuracy"),
    )
    given = SimpleNamespace(train="a", test="b", plans="c", overlap="d")
    assert JobFiles.of_input(study, given) == JobFiles(
        train=Path("a"),
        test=Path("b"),
        plans=Path("c"),
        results=Path("results"),
        data=Path("data"),
        private=("a", "b"),
        overlap=Path("d"),
    )
    assert (
        JobFiles.of_input(study, SimpleNamespace(**vars(given) | {"overlap": []})).overlap is None
    )
