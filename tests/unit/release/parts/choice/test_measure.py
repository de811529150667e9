"""What choosing a release by a look at the benchmark costs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpprobe.heads.auto_rule import choose_head
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants, calibration
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.release.parts.choice import measure as choice
from dpprobe.study.study import Study
from tests.support.small_study import STUDY

N, SEEDS = 1000, 3
COVARIANCE = {"head": "feature_covariance"}
SQUARES = {"head": "least_squares"}
SMALL = {"head": "sgd", "batch_size": 50, "steps": 20, "learning_rate": 0.1}
BACKBONES = {"pixels": {"family": "pixels"}, "small": {"family": "pixels", "size": 4}}

NETWORK = {"vit": {"family": "timm", "model": "vit_tiny_patch16_224"}}


def study(methods: dict[str, Any], epsilons: list[Any], **more: Any) -> Study:
    values = {"methods": methods, "epsilons": epsilons, "seeds": SEEDS}
    return Study.model_validate({**STUDY, "backbones": BACKBONES, **values, **more})


def plan_of(options: dict[str, Any], epsilon: float, folder: Path) -> Plan:
    method = method_options(options)
    return calibrate(method.list_mechanisms(N), Target(n=N, epsilon=epsilon, delta=1e-5),
                     cache=folder, selection=method.priced_selection(N))  # fmt: skip


def price_choice(chosen: Study, folder: Path, **more: Any) -> dict[str, Any]:
    """The block `choice` of a release by covariance at epsilon 1."""
    plan = plan_of(COVARIANCE, 1.0, folder)
    return choice.choice_block(chosen, dataset="digits", plan=plan, cache=folder, **more)


def test_without_sampling_it_is_the_exact_price_of_all_heads_and_the_release(
    tmp_path: Path,
) -> None:
    methods = {"covariance": COVARIANCE, "squares": SQUARES}
    release = plan_of(COVARIANCE, 1.0, tmp_path)
    block = price_choice(study(methods, [0.5, 2]), tmp_path)
    heads = [accountants.gaussian_mu(plan_of(options, epsilon, tmp_path).mechanisms) ** 2
             for options in methods.values() for epsilon in (0.5, 2.0)]  # fmt: skip
    square = SEEDS * len(BACKBONES) * sum(heads) + accountants.gaussian_mu(release.mechanisms) ** 2
    exact = accountants.gaussian_epsilon(math.sqrt(square), 1e-5)
    assert block["cells"] == 8
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)
    assert f"at most epsilon {rounded_up(block['epsilon']):g} at delta 1e-05" in block["words"]
    assert "no epsilon covers their test units" in block["words"]
    assert block["words"].startswith(choice.IF_FIXED), "true also of a release that nobody chose"


def test_sampled_cells_are_bounded_from_above(tmp_path: Path) -> None:
    release = plan_of(COVARIANCE, 1.0, tmp_path)
    chosen = study({"sgd": SMALL}, [1])
    block = price_choice(chosen, tmp_path)
    cell = plan_of(SMALL, 1.0, tmp_path)
    heads = [item.repeat_count(SEEDS * len(BACKBONES)) for item in cell.mechanisms]
    tight = accountants.compute_epsilon([*heads, *release.mechanisms], 1e-5, "pld")
    assert tight <= block["epsilon"] <= 1.3 * tight


def test_cells_that_are_not_private_leave_the_choice_without_a_price(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], list[Any], dict[str, Any], str, int]] = [
        ({}, [1, "inf"], {}, "covariance at epsilon inf", 4),
        ({"ceiling": {"head": "nonprivate"}}, [1], {}, "ceiling at epsilon inf", 4),
        ({}, [1], {"few_shot": {"backbones": ["small"]}}, "small/few-shot probes", 2),
        ({}, [1], {"long_tail": {}}, "small/long tail", 2),
        ({}, [1], {"representation_law": {}, "backbones": NETWORK}, "vit/representation law", 1),
        ({}, [1], {"audit": {"membership": {}}},
         "pixels/covariance at epsilon 1, attacks on membership", 2),
    ]  # fmt: skip
    for methods, epsilons, more, named, cells in cases:
        chosen = study({"covariance": COVARIANCE, **methods}, epsilons, **more)
        block = price_choice(chosen, tmp_path)
        assert (block["cells"], block["epsilon"]) == (cells, None)
        assert choice.NOT_COVERED in block["words"]
        assert named in block["words"]
        assert choice.WHAT_IT_MEANS in block["words"]
        assert "no epsilon covers their test units" in block["words"]


def test_an_audit_on_made_up_rows_exposes_none(tmp_path: Path) -> None:
    added: list[dict[str, Any]] = [{}, {"audit": {}}, {"representation_law": {}}]  # of no network
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
    assert none == {"cells": 0, "epsilon": None, "words": choice.NO_CHOICE}


def test_backbones_and_seeds_share_calibrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[float] = []
    solve = calibration._find_answer

    def counted(mechanisms: Any, target: Target, *rest: Any) -> Any:
        solved.append(target.nominal_epsilon)
        return solve(mechanisms, target, *rest)

    plan_of(COVARIANCE, 1.0, tmp_path)
    monkeypatch.setattr(calibration, "_find_answer", counted)
    backbones = {f"pixels_{size}": {"family": "pixels", "size": size} for size in range(2, 52)}
    methods = {f"covariance_{index}": COVARIANCE for index in range(10)}
    many = study(methods, [0.5, 2], backbones=backbones)
    block = price_choice(many, tmp_path)
    assert block["cells"] == 1000
    assert sorted(solved) == [0.5, 2]


def test_what_auto_chooses_is_priced_by_backbone_where_features_are_there(tmp_path: Path) -> None:
    release = plan_of(COVARIANCE, 1.0, tmp_path)
    auto = study({"auto": {"head": "auto"}}, [0.5, 2])
    facts = {
        name: DataFacts(
            n=N, dimension=dimension, classes=10, multi_label=False, epsilon=1.0, delta=1e-5,
            unit="image",
        )
        for name, dimension in {"pixels": 64, "small": 16}.items()
    }  # fmt: skip
    block = price_choice(auto, tmp_path, facts=facts)
    heads = [accountants.gaussian_mu(plan_of(choose_head(each), epsilon, tmp_path).mechanisms) ** 2
             for epsilon in (0.5, 2.0)
             for each in (replace(facts[name], epsilon=epsilon) for name in facts)]  # fmt: skip
    square = SEEDS * sum(heads) + accountants.gaussian_mu(release.mechanisms) ** 2
    exact = accountants.gaussian_epsilon(math.sqrt(square), 1e-5)
    assert block["cells"] == 4
    assert exact <= block["epsilon"] <= exact * (1 + 1e-5)
    unknown = price_choice(auto, tmp_path, facts={"small": facts["small"]})
    assert (unknown["cells"], unknown["epsilon"]) == (4, None)
    assert "not known yet (pixels/auto). Extract their features first" in unknown["words"]
    assert "no epsilon covers their test units" in unknown["words"]
