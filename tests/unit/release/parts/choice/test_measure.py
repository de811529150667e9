"""The epsilon of choosing a release after looking at the benchmark."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe.analyses.analysis import Analysis
from dpprobe.analysis_registry import load_analyses
from dpprobe.errors import DataError
from dpprobe.files.json_files import write_json
from dpprobe.heads.auto_rule import choose_head
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants, noise_calibration
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement import mechanism_values
from dpprobe.privacy.target import Target
from dpprobe.release.parts.choice import fits_block
from dpprobe.release.parts.choice import measure as choice
from dpprobe.release.parts.choice.measure import check_choice
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from tests.support.mechanisms import gaussians, made_plan
from tests.support.refusals import refuses
from tests.support.small_study import STUDY

N, SEEDS = 1000, 3
COVARIANCE = {"head": "feature_covariance"}
SQUARES = {"head": "least_squares"}
SMALL = {"head": "sgd", "batch_size": 50, "steps": 20, "learning_rate": 0.1}
BACKBONES = {"pixels": {"family": "pixels"}, "small": {"family": "pixels", "size": 4}}

FACTS = DataFacts(
    n=N, dimension=64, classes=10, multi_label=False, epsilon=1.0, delta=1e-5, unit="image"
)
NETWORK = {"vit": {"family": "timm", "model": "vit_tiny_patch16_224"}}


@pytest.fixture(autouse=True)
def _without_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates tests from `results` in the checkout (by `make demo`), whose cells would count."""
    monkeypatch.chdir(tmp_path)


def study(methods: dict[str, Any], epsilons: list[Any], **more: Any) -> Study:
    values = {"methods": methods, "epsilons": epsilons, "seeds": SEEDS}
    return Study.model_validate({**STUDY, "backbones": BACKBONES, **values, **more})


def plan_of(options: dict[str, Any], epsilon: float, folder: Path) -> Plan:
    method = method_options(options)
    return calibrate(
        method.list_mechanisms(N),
        Target(n=N, epsilon=epsilon, delta=1e-5),
        cache=folder,
        selection=method.priced_selection(N),
    )


def price_choice(chosen: Study, folder: Path, **more: Any) -> dict[str, Any]:
    """Returns the block `choice` of a covariance release at epsilon 1."""
    plan = plan_of(COVARIANCE, 1.0, folder)
    return choice.choice_block(chosen, dataset="digits", plan=plan, cache=folder, **more)


def compose(*plans: Plan) -> float:
    """Returns the exact epsilon of all plans' releases together; none is subsampled."""
    square = sum(accountants.gaussian_mu(plan.mechanisms) ** 2 for plan in plans)
    return accountants.gaussian_epsilon(math.sqrt(square), 1e-5)


def test_without_sampling_it_is_the_exact_price_of_all_heads_and_the_release(
    tmp_path: Path,
) -> None:
    methods = {"covariance": COVARIANCE, "squares": SQUARES}
    release = plan_of(COVARIANCE, 1.0, tmp_path)
    block = price_choice(study(methods, [0.5, 2]), tmp_path)
    heads = [
        plan_of(options, epsilon, tmp_path)
        for options in methods.values()
        for epsilon in (0.5, 2.0)
    ]
    exact = compose(release, *heads * SEEDS * len(BACKBONES))
    assert block["cells"] == 8
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)
    assert block["uncovered"] is None


def test_sampled_cells_are_bounded_from_above(tmp_path: Path) -> None:
    release = plan_of(COVARIANCE, 1.0, tmp_path)
    chosen = study({"sgd": SMALL}, [1])
    block = price_choice(chosen, tmp_path)
    cell = plan_of(SMALL, 1.0, tmp_path)
    heads = [item.repeat_count(SEEDS * len(BACKBONES)) for item in cell.mechanisms]
    tight = accountants.compute_epsilon([*heads, *release.mechanisms], 1e-5, "pld")
    assert tight <= block["epsilon"] <= 1.3 * tight


def list_named(block: dict[str, Any]) -> list[str]:
    """Returns the named results of a block, each with its dataset if it is a different one."""
    return [
        "/".join(each[key] for key in ("dataset", "name") if key in each)
        + ("" if "name" in each else f" {each['kind']}")
        for each in block["uncovered"]["results"]
    ]


def test_non_private_cells_leave_the_choice_without_a_price(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], list[Any], dict[str, Any], str, int]] = [
        ({}, [1, "inf"], {}, "pixels/covariance/eps-inf", 4),
        ({"ceiling": {"head": "nonprivate"}}, [1], {}, "pixels/ceiling/eps-inf", 4),
        ({}, [1], {"few_shot": {"backbones": ["small"]}}, "small/few-shot probes", 2),
        ({}, [1], {"long_tail": {}}, "small/long tail", 2),
        ({}, [1], {"representation_law": {}, "backbones": NETWORK}, "vit/representation law", 1),
        (
            {},
            [1],
            {"audit": {"membership": {}}},
            "pixels/covariance at epsilon 1, attacks on membership",
            2,
        ),
    ]
    for methods, epsilons, more, named, cells in cases:
        chosen = study({"covariance": COVARIANCE, **methods}, epsilons, **more)
        block = price_choice(chosen, tmp_path)
        assert (block["cells"], block["epsilon"]) == (cells, None)
        assert block["uncovered"]["reason"] == "not_private"
        assert named in list_named(block)


def test_an_audit_on_made_up_rows_exposes_none(tmp_path: Path) -> None:
    added: list[dict[str, Any]] = [{}, {"audit": {}}, {"representation_law": {}}]  # no network
    blocks = [
        price_choice(study({"covariance": COVARIANCE}, [1], **more), tmp_path) for more in added
    ]
    assert blocks[0]["epsilon"] is not None
    assert blocks[1:] == blocks[:1] * 2


def test_methods_that_cannot_be_calibrated_have_no_heads_to_choose(tmp_path: Path) -> None:
    too_large = {**SMALL, "batch_size": 2 * N}
    both = study({"covariance": COVARIANCE, "sgd": too_large}, [1])
    alone = study({"covariance": COVARIANCE}, [1])
    blocks = [price_choice(each, tmp_path) for each in (both, alone)]
    assert blocks[0] == blocks[1]
    none = price_choice(study({"sgd": too_large}, [1]), tmp_path)
    assert none == {"cells": 0, "epsilon": None, "uncovered": None}


def test_backbones_and_seeds_share_calibrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[float] = []
    solve = noise_calibration.solve_target

    def counted(mechanisms: Any, target: Target, *rest: Any) -> Any:
        solved.append(target.nominal_epsilon)
        return solve(mechanisms, target, *rest)

    plan_of(COVARIANCE, 1.0, tmp_path)
    monkeypatch.setattr(noise_calibration, "solve_target", counted)
    backbones = {f"pixels_{size}": {"family": "pixels", "size": size} for size in range(2, 52)}
    methods = {f"covariance_{index}": COVARIANCE for index in range(10)}
    many = study(methods, [0.5, 2], backbones=backbones)
    block = price_choice(many, tmp_path)
    assert block["cells"] == 1000
    assert sorted(solved) == [0.5, 2]


def test_choices_of_auto_are_priced_by_backbone(tmp_path: Path) -> None:
    release = plan_of(COVARIANCE, 1.0, tmp_path)
    auto = study({"auto": {"head": "auto"}}, [0.5, 2])
    facts = {
        name: replace(FACTS, dimension=dimension)
        for name, dimension in {"pixels": 64, "small": 16}.items()
    }
    block = price_choice(auto, tmp_path, known={"digits": facts})
    heads = [
        plan_of(choose_head(replace(each, epsilon=epsilon)), epsilon, tmp_path)
        for epsilon in (0.5, 2.0)
        for each in facts.values()
    ]
    exact = compose(release, *heads * SEEDS)
    assert block["cells"] == 4
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)
    unknown = price_choice(auto, tmp_path, known={"digits": {"small": facts["small"]}})
    assert (unknown["cells"], unknown["epsilon"]) == (4, None)
    method = {"kind": "method", "name": "pixels/auto"}
    assert unknown["uncovered"] == {"reason": "not_known", "results": [method], "more": 0}


# Other datasets with the same units, and results in the results folder.

BY_ID = {"split_by": "id"}
MNIST = {"source": "torchvision", "name": "MNIST"}
DIGITS = {"source": "sklearn", "name": "digits", **BY_ID}


def with_datasets(folder: Path, datasets: dict[str, Any] | None = None, **more: Any) -> Study:
    given = {"digits": DIGITS, **(datasets or {})}
    return study(
        {"covariance": COVARIANCE},
        [0.5, 2],
        datasets=given,
        results_dir=str(folder / "results"),
        **more,
    )


def composed(folder: Path, fits: dict[float, int]) -> float:
    """Returns the exact epsilon of a covariance release at 1 and of `fits[e]` heads at each e."""
    plans = (plan_of(COVARIANCE, each, folder) for each in [1.0, *Counter(fits).elements()])
    return compose(*plans)


def lay_cell(
    folder: Path,
    place: str,
    *,
    seeds: int = SEEDS,
    noise: float = 1.0,
    options: dict[str, Any] | None = None,
    **changed: Any,
) -> Path:
    """Writes the statement of a cell that was trained at the epsilon in its path."""
    dataset, backbone, method, epsilon = place.split("/")
    path = folder / "results" / "cells" / dataset / backbone / method / f"eps-{epsilon}"
    path.mkdir(parents=True, exist_ok=True)
    plan = plan_of(options or COVARIANCE, float(epsilon), folder)
    mechanisms = [mechanism_values(item.scale_noise(noise), plan) for item in plan.mechanisms]
    statement = {
        "private": True,
        "mechanisms": mechanisms,
        "selection": None,
        "seeds": [f"{seed:032x}" for seed in range(seeds)],
        **changed,
    }
    (path / "privacy.json").write_text(json.dumps(statement))
    return path


EVERY = SEEDS * len(BACKBONES)
HALF = {"subsample": {"fraction": 0.5, "seed": 1}}
CLOTH = {"source": "torchvision", "name": "FashionMNIST"}


@pytest.mark.parametrize(
    ("datasets", "joined", "times"),
    [
        ({"mnist": MNIST}, (), 1),  # different people
        ({"mnist": {**MNIST, "same_units_as": "digits"}}, (), 2),
        ({"digits": {**DIGITS, "same_units_as": "mnist"}, "mnist": MNIST}, (), 2),
        ({"mnist": MNIST}, ("mnist",), 2),  # joined by an earlier booking
        ({"mnist": MNIST}, ("elsewhere",), 1),
        ({"again": {**DIGITS, "split_seed": 3}}, (), 2),  # the same images, undeclared
        ({"part": DIGITS | HALF}, (), 2),
        ({"mnist": {**MNIST, "same_units_as": "part"}, "part": DIGITS | HALF}, (), 3),
        (
            {"mnist": {**MNIST, "same_units_as": "digits"}, "sample": MNIST | HALF, "cloth": CLOTH},
            (),
            3,
        ),
    ],
)
def test_all_datasets_with_the_same_units_count(
    tmp_path: Path, datasets: dict[str, Any], joined: tuple[str, ...], times: int
) -> None:
    block = price_choice(with_datasets(tmp_path, datasets), tmp_path, joined=joined)
    exact = composed(tmp_path, {0.5: times * EVERY, 2.0: times * EVERY})
    assert block["cells"] == times * 4
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)


# At most two images per patient, filtered by scanner; the study protects images.
LIMITED = {
    "source": "csv",
    "train": "train.csv",
    "test": "test.csv",
    "path_column": "path",
    "label_column": "kind",
    "class_names": ["a", "b"],
    "unit": "image",
    "unit_column": "patient",
    "max_images_per_patient": 2,
    "filters": {"scanner": ["one"]},
}


@pytest.mark.parametrize(
    ("datasets", "more", "named"),
    [
        (
            {},
            {"imbalance": {"datasets": ["digits"], "classes": ["3"], "fractions": [0.1]}},
            "pixels/rare classes",
        ),
        (
            {"mnist": {"source": "sklearn", "name": "digits"}},
            {},
            "mnist labels_decide",
        ),
        (
            {"part": {**DIGITS, "subsample": {"per_class": 5, "seed": 1}}},
            {},
            "part labels_decide",
        ),
        (
            {"mnist": {**LIMITED, "same_units_as": "digits"}},
            {},
            "mnist images_move_in",
        ),
        (
            {"mnist": {**MNIST, "same_units_as": "digits"}},
            {"long_tail": {"datasets": ["mnist"]}},
            "mnist/pixels/long tail",
        ),
        ({}, {"tsne": {"split": "train"}}, "pixels/t-SNE of training images"),
    ],
)
def test_results_on_the_same_units_without_a_price_are_named(
    tmp_path: Path, datasets: dict[str, Any], more: dict[str, Any], named: str
) -> None:
    check_named(tmp_path, named, datasets, **more)


def check_named(
    folder: Path, named: str, datasets: dict[str, Any] | None = None, **more: Any
) -> None:
    block = price_choice(with_datasets(folder, datasets, **more), folder)
    assert block["epsilon"] is None
    assert block["uncovered"]["reason"] == "not_private"
    assert named in list_named(block)


def test_sampled_cells_of_a_dataset_need_its_number_of_units(tmp_path: Path) -> None:
    datasets = {"digits": DIGITS, "mnist": {**MNIST, "same_units_as": "digits"}}
    sampled = study({"sgd": SMALL}, [1], datasets=datasets, results_dir=str(tmp_path / "results"))
    block = price_choice(sampled, tmp_path)
    assert block["epsilon"] is None
    assert block["uncovered"]["reason"] == "not_known"
    assert list_named(block)[0] == "mnist/pixels/sgd"
    known = {"mnist": {"pixels": replace(FACTS, n=400, dimension=13, classes=3)}}
    priced = price_choice(sampled, tmp_path, known=known)
    alone = price_choice(study({"sgd": SMALL}, [1]), tmp_path)
    assert priced["cells"] == 2 * alone["cells"] == 4
    assert priced["epsilon"] > alone["epsilon"]


def test_cells_that_lie_there_count_though_the_study_lists_them_no_longer(tmp_path: Path) -> None:
    chosen = with_datasets(tmp_path)

    def check(case: str, cells: int, half: int, two: int) -> None:
        """Compares epsilon with that of `half` heads at epsilon 0.5 and `two` at 2."""
        block, epsilon = price_choice(chosen, tmp_path), composed(tmp_path, {0.5: half, 2.0: two})
        assert block["cells"] == cells, case
        assert epsilon <= block["epsilon"] <= epsilon * (1 + 1e-5), case

    check("none", 4, EVERY, EVERY)
    lay_cell(tmp_path, "digits/pixels/covariance/2")
    check("as planned", 4, EVERY, EVERY)
    lay_cell(tmp_path, "digits/pixels/covariance/2", seeds=SEEDS + 4)
    check("more seeds", 4, EVERY, EVERY + 4)
    lay_cell(tmp_path, "digits/pixels/dropped/2")
    check("another method", 5, EVERY, EVERY + 4 + SEEDS)
    lay_cell(tmp_path, "digits/removed/covariance/0.5", seeds=1)
    check("another backbone", 6, EVERY + 1, EVERY + 4 + SEEDS)
    lay_cell(tmp_path, "digits_3_0p1/pixels/covariance/0.5")  # from an earlier `imbalance`
    check("an unlisted dataset", 7, EVERY + 1 + SEEDS, EVERY + 4 + SEEDS)
    (tmp_path / "results/cells/digits/pixels/emptied/eps-1").mkdir(parents=True)
    check("an empty folder", 7, EVERY + 1 + SEEDS, EVERY + 4 + SEEDS)


def test_cells_with_other_noise_count_too(tmp_path: Path) -> None:
    lay_cell(tmp_path, "digits/pixels/covariance/2", noise=0.5)
    block = price_choice(with_datasets(tmp_path), tmp_path)
    exact = composed(tmp_path, {0.5: EVERY, 2.0: EVERY + 4 * SEEDS})  # twice the mu
    assert block["cells"] == 4
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)


def test_cells_of_former_options_count_from_the_store(tmp_path: Path) -> None:
    cell = lay_cell(tmp_path, "digits/pixels/covariance/2", seeds=2)
    stored = tmp_path / "results/.cells/0f"
    stored.parent.mkdir()
    cell.rename(stored)
    named = {"dataset": "digits", "backbone": "pixels", "method": "covariance", "epsilon": "2"}
    write_json(stored / "metrics.json", {"cell": named, "fingerprint": "0f", "files": {}})
    block = price_choice(with_datasets(tmp_path), tmp_path)
    exact = composed(tmp_path, {0.5: EVERY, 2.0: EVERY + 2})
    assert block["cells"] == 5
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)
    statement = stored / "privacy.json"
    statement.write_text(statement.read_text().replace('"private": true', '"private": false'))
    check_named(tmp_path, "pixels/covariance of former options 0f/eps-2")


def lay_text(folder: Path, name: str, text: str = "{}") -> None:
    path = folder / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("place", "facts", "named"),
    [
        ("digits/small/searched/2", {"private": False}, "small/searched/eps-2"),
        ("gone/small/sgd/2", {"private": False}, "gone/small/sgd/eps-2"),
        ("digits/pixels/covariance/2", {"mechanisms": None}, "pixels/covariance/eps-2"),
    ],
)
def test_cells_without_a_price_that_lie_there_are_named(
    tmp_path: Path, place: str, facts: dict[str, Any], named: str
) -> None:
    lay_cell(tmp_path, place, **facts)
    check_named(tmp_path, named)


def test_cells_without_privacy_or_a_whole_statement_are_named(tmp_path: Path) -> None:
    ceiling = lay_cell(tmp_path, "digits/pixels/ceiling/2", private=False)
    ceiling.rename(ceiling.with_name("eps-inf"))
    check_named(tmp_path, "pixels/ceiling/eps-inf")
    shutil.rmtree(ceiling.parent)
    statement = lay_cell(tmp_path, "digits/pixels/sgd/2") / "privacy.json"
    statement.write_text("{")
    check_named(tmp_path, "pixels/sgd/eps-2")
    statement.rename(statement.with_name("metrics.json"))
    check_named(tmp_path, "pixels/sgd/eps-2")


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("few_shot/digits/small.json", "{}", "small/few-shot probes"),
        ("long_tail/digits/pixels.json", "{}", "pixels/long tail"),
        ("imbalance/digits/pixels.json", "{}", "pixels/rare classes"),
        ("sites/gone/pixels.json", "{}", "gone/pixels/simulated sites"),
        (
            "audit/digits/pixels/sgd/eps-1.json",
            '{"membership": {"rows": 3}}',
            "pixels/attacks on membership",
        ),
    ],
)
def test_analyses_without_a_price_that_lie_there_are_named(
    tmp_path: Path, name: str, text: str, named: str
) -> None:
    lay_text(tmp_path, name, text)
    check_named(tmp_path, named)


def test_results_that_read_no_training_unit_expose_none(tmp_path: Path) -> None:
    before = price_choice(with_datasets(tmp_path), tmp_path)
    lay_text(tmp_path, "audit/digits/pixels/sgd/eps-1.json", '{"membership": null}')
    lay_text(tmp_path, "fairness/digits/pixels.json")
    lay_text(tmp_path, "zero_shot/digits/pixels/metrics.json")
    lay_text(tmp_path, "few_shot/digits/.pixels.json.part")  # of a killed job
    lay_cell(tmp_path, "mnist/pixels/covariance/2", private=False)  # different people
    assert price_choice(with_datasets(tmp_path, {"mnist": MNIST}), tmp_path) == before


# Studies in which each analysis runs, with the options that it needs.
RUNNING: dict[str, dict[str, Any]] = {
    "audit": {"audit": {"membership": {}}},
    "long_tail": {"long_tail": {}},
    "representation_law": {"representation_law": {}, "backbones": NETWORK},
    "fairness": {"fairness": {"groups": ["class"]}},
    "group_gradients": {"group_gradients": {}},
    "imbalance": {"imbalance": {"datasets": ["digits"], "classes": ["3"], "fractions": [0.1]}},
    "tsne": {"tsne": {"split": "train"}},
    "sites": {"sites": {"counts": [2]}},
    "few_shot": {"few_shot": {"backbones": ["small"]}},
}


@pytest.mark.parametrize("analysis", load_analyses(), ids=lambda each: each.name)
def test_each_analysis_is_unpriced_or_reads_no_training_row(analysis: Analysis) -> None:
    methods = {"squares": SQUARES, "covariance": COVARIANCE}
    running = study(methods, [1], datasets={"digits": DIGITS}, **RUNNING.get(analysis.name, {}))
    if analysis.unpriced:
        assert analysis.list_unpriced(running, "digits"), "it names what it shows of training rows"
        assert not analysis.list_unpriced(running, "other")
        return
    assert analysis.measurement is not None, "handwritten rules may read anything"
    files = StudyFiles(running, data="d", results="r")
    for backbone in running.backbones:
        place = {"dataset": "digits", "backbone": backbone}
        read = [
            path
            for need in analysis.measurement.needs.values()
            for path in need.paths(files, place)
        ]
        assert read
        for path in read:
            assert "/train/" not in path
            # only test results of a cell: neither heads nor a history of the training loss
            assert not path.endswith(("heads.safetensors", "history.parquet"))


# Statements about a choice among results, and their verification.


PLAN = made_plan([gaussians(8.0)], n=1000)
OF_STUDY: Any = SimpleNamespace(is_of_estimator=False)
ESTIMATOR: Any = SimpleNamespace(is_of_estimator=True)


NAMED = {"kind": "cell", "name": "pixels/sgd/eps-inf"}
OF_STUDIES: list[dict[str, Any]] = [
    {"cells": 0, "epsilon": None, "uncovered": None},
    {"cells": 12, "epsilon": 1.23456, "uncovered": None},
    *(
        {
            "cells": 12,
            "epsilon": None,
            "uncovered": {"reason": reason, "results": results, "more": more},
        }
        for reason in (choice.NOT_PRIVATE, choice.NOT_KNOWN)
        for results, more in (([NAMED], 0), ([NAMED | {"dataset": "mnist"}] * 3, 3))
    ),
    {
        "cells": 1,
        "epsilon": None,
        "uncovered": {
            "reason": choice.NOT_PRIVATE,
            "results": [{"kind": "labels_decide", "dataset": "mnist"}],
            "more": 0,
        },
    },
]


def check(block: dict[str, Any]) -> bool:
    values = {"choice": block, "format_version": 3, "delta": 1e-5}
    values |= {"unit": "image", "public_data": {}}
    return check_choice(values, PLAN, OF_STUDY)[1]


@pytest.mark.parametrize("block", OF_STUDIES, ids=str)
def test_a_choice_of_a_study_is_believed(block: dict[str, Any]) -> None:
    assert check(block)


def test_results_without_privacy_are_named_up_to_three(tmp_path: Path) -> None:
    methods = {f"covariance_{index}": COVARIANCE for index in range(3)}
    block = price_choice(study(methods, ["inf"]), tmp_path)
    names = [f"pixels/covariance_{index}/eps-inf" for index in range(3)]
    assert block["uncovered"]["more"] == 3
    assert list_named(block) == names
    assert check(block)


UNCOVERED: dict[str, Any] = OF_STUDIES[2]["uncovered"]
WRONG: list[dict[str, Any]] = [
    {"reason": "none"},
    {"words": "none"},
    {"results": []},
    {"results": [NAMED] * 4},
    {"results": [NAMED | {"kind": "other"}]},
    {"results": [NAMED | {"words": "none"}]},
    {"results": [NAMED | {"name": 3}]},
]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"epsilon": 0.5}, ("epsilon 0.5", "epsilon")),
        ({"epsilon": 1.0}, ("epsilon 1",)),
        ({"cells": 0}, ("cells", "epsilon")),
        ({"cells": -1}, ("cells", -1)),
        ({"cells": True}, ("cells", True)),
        ({"epsilon": "2"}, ("epsilon", "2")),
        ({"epsilon": None}, ("epsilon",)),
        ({"uncovered": UNCOVERED}, ("epsilon",)),
        ({"words": "none"}, ("choice", "['cells', 'epsilon', 'uncovered']")),
        *(
            ({"epsilon": None, "uncovered": {**UNCOVERED, **each}}, ("uncovered",))
            for each in WRONG
        ),
        ({"epsilon": None, "uncovered": {**UNCOVERED, "more": -1}}, ("more + 1", 0)),
    ],
    ids=str,
)
def test_an_impossible_choice_is_named(change: dict[str, Any], fault: tuple[object, ...]) -> None:
    with refuses(DataError, *fault):
        check(OF_STUDIES[1] | change)


@pytest.mark.parametrize("listed", [1, 2, 12])
def test_an_estimator_states_the_number_of_earlier_fits(listed: int) -> None:
    block = fits_block(listed)
    assert block == {"cells": 0, "epsilon": None, "uncovered": None, "other_fits": listed - 1}
    values = {"choice": block, "ledger": {"releases": listed}}
    assert check_choice(values, PLAN, ESTIMATOR)[1]
    changes: list[dict[str, Any]] = [{"other_fits": listed}, {"cells": 1}, {"words": "none"}]
    for wrong in changes:
        with refuses(DataError, "choice"):
            check_choice({**values, "choice": block | wrong}, PLAN, ESTIMATOR)
    with refuses(DataError, "choice"):
        check_choice({**values, "ledger": {"releases": listed + 1}}, PLAN, ESTIMATOR)
