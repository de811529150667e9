"""The studies of Mehta et al. 2022 and 2023, and of ScatterNet, have what these print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.exhibits.published import read_published
from dpprobe.heads.registry import AnyMethod
from dpprobe.heads.tuned import Options as Tuned
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.target import Target
from dpprobe.study.ablations import find_changes
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.conftest import REPOSITORY

# Tables 6 and 7 of Mehta et al. 2022.
MOMENTUM = {0.03, 0.06, 0.1, 0.4, 1.6, 6.4, 25.6, 102.4}
LAMB = {1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0}
ALPHAS = {1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5}
IMAGENET, CIFAR = 1_281_167, 50_000


def study_of(name: str) -> Study:
    values: dict[str, Any] = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text())
    return load_study(values)


def rates(study: Study, **options: Any) -> set[float]:
    """Returns the learning rates of the methods with these options."""
    methods = [method.model_dump() for method in study.methods.values()]
    wanted = [m for m in methods if {key: m.get(key) for key in options} == options]
    return {method["learning_rate"] for method in wanted}


def tuned(study: Study, suffix: str = "_tuned") -> Mapping[str, Tuned]:
    return {n: m for n, m in study.methods.items() if n.endswith(suffix) and isinstance(m, Tuned)}


@pytest.mark.parametrize(
    ("name", "delta"),
    [
        ("large_scale_transfer", 1e-6),
        ("large_scale_transfer_ablation", 1e-6),
        ("large_scale_transfer_crops", 1e-6),
        ("large_scale_transfer_delta", 8e-7),
        ("large_scale_transfer_full", 1e-6),
        ("large_scale_transfer_models", 1e-6),
        ("large_scale_transfer_one_step", 1e-6),
    ],
)
def test_a_study_on_imagenet_has_the_paper_s_recipe(name: str, delta: float) -> None:
    study = study_of(name)
    assert (study.delta, study.accountant) == (delta, "rdp")
    assert any("above 1/n" in warning for warning in check_study(study))
    for method_name, method in study.methods.items():
        options = method.model_dump()
        options = options.get("base", options)
        if options["head"] == "nonprivate":
            continue
        assert (options["loss"], options["init_bias"]) == ("sigmoid", -10), method_name
        if "inf" in study.epsilons:
            assert options["max_batch_grad_norm"] == 1, method_name


def test_both_optimisers_have_every_batch_and_rate() -> None:
    study = study_of("large_scale_transfer")
    for exponent in (17, 18, 19, 20):
        assert rates(study, head="momentum", batch_size=2**exponent) == MOMENTUM
        assert rates(study, head="lamb", batch_size=2**exponent) == LAMB
    searched = {frozenset(method.search["learning_rate"]) for method in tuned(study).values()}
    assert searched == {frozenset(MOMENTUM), frozenset(LAMB)}
    assert len(tuned(study)) == 8
    for method in study.methods.values():
        if method.head in ("lamb", "momentum"):
            steps = method.list_mechanisms(IMAGENET)[-1].count
            assert steps == round(10 * IMAGENET / method.model_dump()["batch_size"])


def test_whole_networks_search_rates_and_alphas() -> None:
    study = study_of("large_scale_transfer_full")
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


@pytest.mark.parametrize(
    "name", ["large_scale_transfer_ablation", "large_scale_transfer_ablation_cifar10"]
)
def test_each_row_of_the_ablation_is_one_change_at_some_rate(name: str) -> None:
    study = study_of(name)
    base = study.methods[study.papers.base or ""].model_dump()
    groups: dict[str, list[dict[str, Any]]] = {}
    for method_name, method in study.methods.items():
        if method.head != "tuned" and method.head != "nonprivate":
            groups.setdefault(method_name.rpartition("_")[0], []).append(method.model_dump())
    assert set(groups) == {
        "lamb",
        "adam",
        "momentum",
        "lecun",
        "one_epoch",
        "clip_10",
        "clip_0p1",
        "mean",
        "ema",
    }
    for group, options in groups.items():
        assert {o["learning_rate"] for o in options} == (MOMENTUM if group == "momentum" else LAMB)
        for one in options:
            changed = set(find_changes(base, one)) - {"learning_rate", "ema_decay"}
            assert len(changed) == (0 if group == "lamb" else 1), group


@pytest.mark.parametrize(
    "name", ["large_scale_transfer_crops", "large_scale_transfer_crops_cifar10"]
)
def test_crops_and_resolutions_are_one_change_each(name: str) -> None:
    """And steps take as many crops as the full study has epochs: none comes back."""
    study = study_of(name)
    assert rates(study, head="lamb") == LAMB
    base, centre, *sizes = (backbone.extraction_params() for backbone in study.backbones.values())
    crops = base["preprocessing"].pop("crops")
    assert crops == (10 if name == "large_scale_transfer_crops" else 4)
    assert (base["preprocessing"].pop("crop"), centre["preprocessing"].pop("crop")) == (
        "inception",
        "centre",
    )
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


def test_the_single_step_takes_all_rows() -> None:
    study = study_of("large_scale_transfer_one_step")
    assert study.seeds == 5
    assert {"0.25", "8", "10"} <= set(study.epsilons)
    assert rates(study, head="momentum") == MOMENTUM
    assert rates(study, head="lamb", init="zero") <= {1e-4, 2e-4, 5e-4, 1e-3}
    for method in study.methods.values():
        if method.private:
            gradients = method.list_mechanisms(IMAGENET)[-1]
            assert (gradients.count, gradients.sample_rate) == (1, 1.0)


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


def test_the_best_column_is_momentum_without_privacy() -> None:
    """Dosovitskiy et al. 2021, appendix B.1.1 and table 4, and the warm-up of their code."""
    study = study_of("large_scale_transfer_best")
    assert study.epsilons == ("inf",)
    assert rates(study, head="momentum", batch_size=512) == {0.003, 0.01, 0.03, 0.06}
    full = study.methods["full"].model_dump()
    assert (full["optimiser"], full["batch_size"], full["tune"]) == ("momentum", 512, "all")
    search = full["search"]
    assert set(search["space"]["learning_rate"]) == {0.003, 0.01, 0.03, 0.06}
    assert (search["trials"], search["held_out"]) == (4, 0.01)
    for method in study.methods.values():
        if method.head != "nonprivate":
            values = method.model_dump()
            assert (values["max_batch_grad_norm"], values["schedule"]) == (1, "warmup_cosine")
            assert values["warmup"] * 20_000 == pytest.approx(500)
            assert method.list_mechanisms(IMAGENET)[-1].count == 20_000


def test_natural_images_are_fine_tuned_as_radiographs_are() -> None:
    study = study_of("natural_images_fine_tuning")
    assert (study.delta, study.accountant) == (8e-7, "rdp")
    assert study.epsilons == ("0.5", "1", "2", "4", "8", "inf")
    whole = study.methods["whole"].model_dump()
    assert (whole["max_grad_norm"], whole["ema_decay"], whole["tune"]) == (1, 0.9999, "all")
    for dataset in study.datasets:
        rows = study.datasets[dataset].expect.train or 0
        assert study.delta > 1 / rows
        assert study.methods["whole"].list_mechanisms(rows)[-1].sample_rate == 2**18 / rows


def test_the_wide_resnet_has_the_settings_of_its_authors_code() -> None:
    study = study_of("wide_resnet_cifar10")
    whole = study.methods["whole"].model_dump()
    assert (whole["batch_size"], whole["steps"], whole["learning_rate"]) == (16_384, 250, 1)
    assert (whole["max_grad_norm"], whole["ema_decay"]) == (1, 0.9999)
    assert whole["augment"]["views"] == 16
    assert ("2" in study.epsilons, study.delta) == (True, 1e-5)


def test_deltas_of_patients_are_one_over_those_that_train() -> None:
    study = study_of("medical_fairness")
    # 64,540 training patients of CheXpert less a tenth; 65,379 of MIMIC-CXR less 500 and 293
    for dataset, patients in (("chexpert", 58_086), ("mimic_cxr", 64_586)):
        assert 0.96 / patients < study.dataset_delta(dataset) < 1 / patients


def parts(method: AnyMethod, rows: int) -> tuple[float, Mechanism]:
    """Returns the normalisation's part of a method's budget, and its steps."""
    normalisation: list[Mechanism] = []
    gradients: list[Mechanism] = []
    for mechanism in method.list_mechanisms(rows):
        (gradients if mechanism.name == "gradients" else normalisation).append(mechanism)
    price = [
        sum(m.count * m.sample_rate**2 / m.noise_multiplier**2 for m in group)
        for group in (normalisation, gradients)
    ]
    return price[0] / sum(price), gradients[0]


@pytest.mark.parametrize(
    ("name", "method", "rows", "batch", "noise"),
    [
        ("scatternet_mnist", "channels", 60_000, 4096, 3.04),
        ("scatternet_fashion_mnist", "group_norm", 60_000, 8192, None),
        ("scatternet_cifar10", "channels", 50_000, 8192, 5.67),
        ("scatternet_mnist_rdp", "channels", 60_000, 4096, 3.04),
        ("scatternet_fashion_mnist_rdp", "group_norm", 60_000, 8192, None),
        ("scatternet_cifar10_rdp", "channels", 50_000, 8192, 5.67),
    ],
)
def test_scatternet_shares_the_budget_as_published(
    name: str, method: str, rows: int, batch: int, noise: float | None
) -> None:
    share, gradients = parts(study_of(name).methods[method], rows)
    assert gradients.sample_rate == pytest.approx(batch / rows)
    if noise is None:
        assert share == 0
        return
    statistics = 2 / 8**2  # two releases of noise 8
    steps = gradients.count * (batch / rows) ** 2 / noise**2
    assert share == pytest.approx(statistics / (statistics + steps), rel=2e-3)


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


NAMES = sorted(path.stem for path in (REPOSITORY / "config").glob("*.yaml"))
LINEAR = [
    name
    for name in NAMES
    if name.startswith(("large_scale_transfer", "scatternet")) and "_cnn_" not in name
]


@pytest.mark.parametrize("name", LINEAR)
def test_heads_of_the_papers_are_linear_layers_whatever_the_defaults_become(name: str) -> None:
    """A bias whose gradient counts as any other, on features as they are; both are written."""
    for method in study_of(name).methods.values():
        base = getattr(method, "base", method)
        if base.head in ("nonprivate", "fine_tune"):
            continue
        assert {"intercept", "normalize", "batch_size", "max_grad_norm"} <= base.model_fields_set
        assert base.model_dump()["intercept"] == 1.0


@pytest.mark.parametrize(
    ("name", "train"), [("medical_fine_tuning", 223_414), ("medical_fine_tuning_mimic", None)]
)
def test_radiographs_are_fine_tuned_as_berrada_et_al_say(name: str, train: int | None) -> None:
    """Clipping norm 0.001, decays 0.9 and 0.9999, RDP, epsilon 0.5 to 8, and images as units."""
    study = study_of(name)
    (dataset,) = study.datasets
    assert study.dataset_unit(dataset) == "image"
    assert study.accountant == "rdp"
    assert study.epsilons == ("0.5", "1", "2", "4", "8", "inf")
    if train:
        assert 0.95 / train < study.dataset_delta(dataset) < 1 / train
    networks = {n: m.model_dump() for n, m in study.methods.items() if m.head == "fine_tune"}
    assert {options["max_grad_norm"] for options in networks.values()} == {0.001}
    assert {options["loss"] for options in networks.values()} == {"sigmoid"}
    decays = {options["ema_decay"] for options in networks.values()}
    assert decays == {0.9, 0.9999, None}
    assert {options["batch_size"] for options in networks.values()} <= {"full", 2**17, 2**18}
    assert networks["blocks_2"]["tune"] == {"blocks": 2}
    assert study.methods["nonprivate"].head == "nonprivate"


@pytest.mark.parametrize("dataset", ["mnist", "fashion_mnist", "cifar10"])
def test_scatternet_runs_at_epsilons_that_papers_print(dataset: str) -> None:
    numbers = read_published().select_numbers(dataset=dataset, metric="accuracy")
    printed = {f"{number.single_epsilon:g}" for number in numbers if number.single_epsilon}
    for name in (f"scatternet_{dataset}", f"scatternet_{dataset}_rdp"):
        assert set(study_of(name).epsilons) <= printed | {"3"}, name  # 3 is that of its authors


def test_seeds_and_accountants_are_those_of_the_papers_or_said() -> None:
    for name in NAMES:
        study = study_of(name)
        if name.startswith(("cnn_", "scatternet")) and name.endswith(("_rdp", "cnn_mnist")):
            assert (study.accountant, study.seeds) == ("rdp_2017", 5), name
        if name.startswith("features_second_order"):
            assert study.accountant == "pld"
            assert {"0.1", "1", "8"} <= set(study.epsilons)
    assert study_of("features_second_order").dataset_delta("imagenet") == 8e-7
