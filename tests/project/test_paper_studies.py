"""The studies of Mehta et al. 2022 and 2023, and of ScatterNet, have what these print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.study.ablations import find_changes
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study

# Tables 6 and 7 of Mehta et al. 2022.
MOMENTUM = {0.03, 0.06, 0.1, 0.4, 1.6, 6.4, 25.6, 102.4}
LAMB = {1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0}
ALPHAS = {1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5}
IMAGENET, CIFAR = 1_281_167, 50_000


def study_of(repository: Path, name: str) -> Study:
    values: dict[str, Any] = yaml.safe_load((repository / f"config/{name}.yaml").read_text())
    return load_study(values)


def rates(study: Study, **options: Any) -> set[float]:
    """Returns the learning rates of the methods with these options."""
    methods = [method.model_dump() for method in study.methods.values()]
    wanted = [m for m in methods if {key: m.get(key) for key in options} == options]
    return {method["learning_rate"] for method in wanted}


def test_whole_networks_search_rates_and_alphas(repository: Path) -> None:
    study = study_of(repository, "large_scale_transfer_full")
    sizes: dict[str, set[int]] = {"momentum": set(), "lamb": set()}
    for method in study.methods.values():
        options = method.model_dump()
        space = (options.get("search") or {}).get("space", options["search"])
        options = options.get("base", options)
        sizes[options["optimiser"]].add(options["batch_size"])
        assert set(space["learning_rate"]) == (
            MOMENTUM if options["optimiser"] == "momentum" else LAMB
        )
        assert set(space.get("backbone_rate", ALPHAS)) == ALPHAS
        assert ("backbone_rate" in space) == (options["optimiser"] == "lamb")
    assert sizes == {
        "momentum": {2**k for k in range(15, 21)},
        "lamb": {2**k for k in range(17, 21)},
    }


@pytest.mark.parametrize("name", ["large_scale_transfer_ablation", "large_scale_transfer_local"])
def test_each_row_of_the_ablation_is_one_change_at_some_rate(repository: Path, name: str) -> None:
    study = study_of(repository, name)
    base = study.methods[study.papers.base or ""].model_dump()
    groups: dict[str, list[dict[str, Any]]] = {}
    for method_name, method in study.methods.items():
        if method.head != "tuned" and method.head != "nonprivate":
            groups.setdefault(method_name.rpartition("_")[0], []).append(method.model_dump())
    assert set(groups) == {
        "lamb", "adam", "momentum", "lecun", "one_epoch", "clip_10", "clip_0p1", "mean", "ema",
    }  # fmt: skip
    for group, options in groups.items():
        assert {o["learning_rate"] for o in options} == (MOMENTUM if group == "momentum" else LAMB)
        for one in options:
            changed = set(find_changes(base, one)) - {"learning_rate", "ema_decay"}
            assert len(changed) == (0 if group == "lamb" else 1), group


@pytest.mark.parametrize("name", ["large_scale_transfer_crops", "large_scale_transfer_crops_local"])
def test_crops_and_resolutions_are_one_change_each(repository: Path, name: str) -> None:
    """And steps take as many crops as the full study has epochs: none comes back."""
    study = study_of(repository, name)
    assert rates(study, head="lamb") == LAMB
    base, centre, *sizes = (backbone.extraction_params() for backbone in study.backbones.values())
    crops = base["preprocessing"].pop("crops")
    assert crops == (10 if name == "large_scale_transfer_crops" else 4)
    assert (base["preprocessing"].pop("crop"), centre["preprocessing"].pop("crop")) == (
        "inception", "centre",
    )  # fmt: skip
    assert base == centre
    for other in sizes:
        other["preprocessing"].pop("crop")
        assert other["preprocessing"].pop("crops") == crops
        assert set(find_changes(base["preprocessing"], other["preprocessing"])) == {"size"}
    size, (larger, smaller) = (
        base["preprocessing"]["size"],
        (other["preprocessing"]["size"] for other in sizes),
    )
    assert (larger / size, smaller / size) == (pytest.approx(4 / 3), pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("name", "method"),
    [("mnist", "channels"), ("fashion_mnist", "group_norm"), ("cifar10", "channels")],
)
def test_scatternet_s_heads_are_those_whose_noise_is_the_published_one(
    repository: Path, name: str, method: str
) -> None:
    studies = [study_of(repository, f"scatternet_{name}{end}") for end in ("", "_rdp")]
    assert studies[0].methods[method] == studies[1].methods[method]


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
def test_tramer_and_boneh_s_noise_comes_out_at_epsilon_3(
    repository: Path, tmp_path: Path, name: str, method: str, rows: int, batch: int, noise: float
) -> None:
    study = study_of(repository, name)
    options = study.methods[method]
    assert (study.seeds, study.delta, options.model_dump()["max_grad_norm"]) == (5, 1e-5, 0.1)
    plan = calibrate(
        options.list_mechanisms(rows),
        Target(n=rows, epsilon=3.0, delta=study.delta, accountant=study.accountant),
        cache=tmp_path,
    )
    gradients = plan.find_mechanism("gradients")
    assert gradients.sample_rate == pytest.approx(batch / rows)
    assert round(gradients.noise_multiplier, 2) == noise
    others = [item.noise_multiplier for item in plan.mechanisms if item is not gradients]
    assert others == pytest.approx([8.0] * len(others), rel=1e-3)
    (pld,) = (price for name, price in plan.checks.items() if name.startswith("pld"))
    assert pld == pytest.approx(2.37, abs=0.02)


def test_deltas_of_patients_are_one_over_those_that_train(repository: Path) -> None:
    study = study_of(repository, "medical_fairness")
    # 64,540 training patients of CheXpert less a tenth; 65,379 of MIMIC-CXR less 500 and 293
    for dataset, patients in (("chexpert", 58_086), ("mimic_cxr", 64_586)):
        assert 0.96 / patients < study.dataset_delta(dataset) < 1 / patients
