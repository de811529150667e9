"""Studies that reproduce papers use the numbers printed in the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.exhibits import published
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from reproduction import facts
from reproduction.facts import place
from tests.conftest import REPOSITORY

CIFAR = 50_000


def study_of(name: str) -> Study:
    values: dict[str, Any] = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text())
    return load_study(values)


@pytest.mark.parametrize("name", ["features_second_order", "features_second_order_cifar10"])
def test_published_recipes_have_the_published_numbers(name: str) -> None:
    methods = study_of(name).methods
    fc, whole = methods["published_fc"].model_dump(), methods["published_fc_whole_rows"]
    assert (fc["steps"], fc["learning_rate"], fc["ridge"], fc["init_bias"]) == (10, 0.2, 100, -10)
    assert (fc["max_row_norm"], fc["max_grad_norm"], fc["loss"]) == (0.005, 0.005, "sigmoid")
    scale = (whole.model_dump()["max_row_norm"] / 0.005) ** 2
    assert whole.model_dump()["ridge"] == pytest.approx(100 * scale)
    assert whole.model_dump()["learning_rate"] == pytest.approx(0.2 * scale)
    for equal in ("published_fc", "published_least_squares", "published_newton"):
        noise = {m.noise_multiplier for m in methods[equal].list_mechanisms(CIFAR)}
        assert max(noise) == pytest.approx(min(noise), rel=1e-3), equal
    squares, newton = (methods[f"published_{n}"].model_dump() for n in ("least_squares", "newton"))
    assert squares["ridge"] == pytest.approx(3e-4 / 2)
    assert newton["learning_rate"] == pytest.approx(4 * 0.625)
    assert newton["ridge"] == pytest.approx(4 * 2e-7)
    descent = methods["published_gradient_descent"]
    assert descent.list_mechanisms(CIFAR)[-1].count == 100
    assert descent.model_dump()["learning_rate"] == pytest.approx(1e-4 * 0.1 / 0.001)


@pytest.mark.parametrize(
    ("name", "method", "rows", "batch", "noise"),
    [
        ("scatternet_mnist_rdp", "channels", 60_000, 4096, 3.04),
        ("scatternet_fashion_mnist_rdp", "group_norm", 60_000, 8192, 4.05),
        ("scatternet_cifar10_rdp", "channels", 50_000, 8192, 5.67),
        ("cnn_mnist", "from_scratch", 60_000, 512, 1.23),
        ("cnn_fashion_mnist", "from_scratch", 60_000, 2048, 2.15),
        ("cnn_cifar10", "from_scratch", 50_000, 1024, 1.54),
        ("scatternet_cnn_mnist", "from_scratch", 60_000, 1024, 1.35),
    ],
)
def test_tramer_and_bonehs_noise_has_epsilon_3(
    tmp_path: Path, name: str, method: str, rows: int, batch: int, noise: float
) -> None:
    study = study_of(name)
    options = study.methods[method]
    assert (study.seeds, study.delta, options.model_dump()["max_grad_norm"]) == (5, 1e-5, 0.1)
    target = Target(n=rows, epsilon=3.0, delta=study.delta, accountant=study.accountant)
    plan = calibrate(options.list_mechanisms(rows), target, cache=tmp_path)
    gradients = plan.find_mechanism("gradients")
    assert gradients.sample_rate == pytest.approx(batch / rows)
    assert round(gradients.noise_multiplier, 2) == noise
    others = [item.noise_multiplier for item in plan.mechanisms if item is not gradients]
    assert others == pytest.approx([8.0] * len(others), rel=1e-3)
    (pld,) = (price for name, price in plan.checks.items() if name.startswith("pld"))
    assert pld == pytest.approx(2.37, abs=0.02)


@pytest.mark.parametrize("name", ["heads", "networks", "scattering"])
def test_studies_of_the_leaderboard_have_its_epsilons_and_deltas(name: str) -> None:
    """Covers each published result whose entry names the study; the unit of privacy is an image."""
    study = study_of(f"leaderboard_{name}")
    known, read = facts.read(), published.read_published()
    entries = known.by_number(read)
    numbers = [
        number
        for number in read.select_numbers(paper="private_ml_leaderboard")
        if entries[place(number)].study == f"config/leaderboard_{name}.yaml"
    ]
    assert {number.dataset for number in numbers} == set(study.datasets)
    for number in numbers:
        assert number.dataset is not None
        assert study.datasets[number.dataset].delta == number.delta
        assert study.dataset_unit(number.dataset) == "image"
        assert f"{number.epsilon:g}" in study.epsilons
        (ours,) = entries[place(number)].ours
        assert ours.study == study.study
        assert {*ours.methods} <= {*study.methods}
        assert ours.backbone is None or ours.backbone in study.backbones


@pytest.mark.parametrize("name", ["heads", "networks", "scattering"])
def test_a_study_of_the_leaderboard_protects_patients_without_its_line_unit(name: str) -> None:
    values = yaml.safe_load((REPOSITORY / f"config/leaderboard_{name}.yaml").read_text())
    for dataset in values["datasets"].values():
        assert dataset.pop("unit") == "image"
    study = load_study(values)
    assert {study.dataset_unit(dataset) for dataset in study.datasets} == {"patient"}
