"""Methods that train networks have jobs, start from stored activations, and refuse some options."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.study.cuts import study_cuts
from dpprobe.study.network_methods import (
    blocks_faults,
    head_methods,
    network_faults,
    network_methods,
    searched_methods,
)
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

DIGITS = {"source": "sklearn", "name": "digits"}
VIT = {"family": "timm", "model": "test_vit", "pretrained": False}
SEARCH = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}}


def tuned(tune: Any, **values: Any) -> dict[str, Any]:
    return {"head": "fine_tune", "tune": tune, "steps": 2, **values}


NETWORKS: dict[str, Any] = {
    "sgd": {"head": "sgd"},
    "ceiling": {"head": "nonprivate"},
    "two": tuned({"blocks": 2}),
    "again": tuned({"blocks": 2}, learning_rate=0.1),
    "nine": tuned({"blocks": 9}, search=SEARCH),
    "all": tuned("all"),
    "head": tuned("head"),
    "views": tuned({"blocks": 3}, augment={"views": 2}),
}


def study_of(**changes: Any) -> Study:
    return load_study(STUDY | {"backbones": {"vit": VIT}, "methods": NETWORKS} | changes)


def test_heads_train_together_and_each_network_alone() -> None:
    study = study_of(epsilons=[1, "inf"])
    assert head_methods(study, "1") == ("sgd",)
    assert head_methods(study, "inf") == ("sgd", "ceiling")
    assert network_methods(study) == ("two", "again", "nine", "all", "head", "views")
    assert searched_methods(study) == ("nine",)
    # heads and networks together are all methods, each once
    for epsilon in study.job_epsilons():
        both = {*head_methods(study, epsilon), *network_methods(study)}
        assert {*study.job_methods(epsilon)} <= both
        assert not {*head_methods(study, epsilon)} & {*network_methods(study)}


def test_each_depth_is_cut_once_for_each_dataset_and_backbone() -> None:
    """`all` and views train from images; two methods of equal depth share stored activations."""
    study = study_of(
        backbones={"b": VIT, "a": VIT},
        datasets={"digits": DIGITS, "other": DIGITS | {"split_seed": 1}},
    )
    depths = sorted({cut.blocks for cut in study_cuts(study)})
    assert {2, 9} <= set(depths)
    assert 3 not in depths
    assert study_cuts(study) == [
        (dataset, backbone, depth)
        for dataset in ("digits", "other")
        for backbone in ("b", "a")
        for depth in depths
    ]
    assert study_cuts(study, "other") == [
        cut for cut in study_cuts(study) if cut.dataset == "other"
    ]
    assert study_cuts(study_of(methods={"sgd": {"head": "sgd"}})) == []


def cut_and_uncut(**preprocessing: Any) -> tuple[list[str], list[str]]:
    """Returns faults of methods with stored activations, and of methods that train from images."""
    study = study_of(backbones={"vit": VIT | {"preprocessing": preprocessing}})
    faults = list(network_faults(study))
    stored = ("two", "again", "nine", "head")
    own = [fault for fault in faults if fault.split(":")[0] in {f"methods.{m}" for m in stored}]
    return own, [fault for fault in faults if fault not in own]


@pytest.mark.parametrize(
    ("preprocessing", "remedy"),
    [({"crop": "inception"}, "crop: centre"), ({"flip": True}, "preprocessing.flip")],
)
def test_views_of_a_backbone_are_refused_where_activations_are_stored(
    preprocessing: dict[str, Any], remedy: str
) -> None:
    stored, from_images = cut_and_uncut(**preprocessing)
    assert from_images == []
    blocks = [fault for fault in stored if "methods.head" not in fault]
    assert [fault.split(":")[0] for fault in blocks] == [
        "methods.two",
        "methods.again",
        "methods.nine",
    ]
    assert all(remedy in fault and ": backbones.vit: " in fault for fault in stored)


def test_several_stored_crops_are_only_for_linear_heads() -> None:
    stored, from_images = cut_and_uncut(crop="inception", crops=4)
    for fault in [*stored, *from_images]:
        assert "preprocessing.crops is only for linear heads" in fault
    assert len(stored) + len(from_images) == len(network_methods(study_of()))


def test_a_family_without_a_network_and_releases_of_networks_are_refused() -> None:
    release = {"dataset": "digits", "backbone": "pixels", "method": "two", "epsilon": 1.0}
    study = study_of(
        methods={"two": NETWORKS["two"], "sgd": NETWORKS["sgd"]},
        backbones={"pixels": {"family": "pixels"}, "vit": VIT},
        releases={"net": release, "head": release | {"method": "sgd", "predecessor": "net"}},
    )
    of_family, of_release = network_faults(study)
    assert of_family.startswith("methods.two: backbones.pixels: family pixels has no network")
    assert of_release.startswith("releases.net: method two: it trains a network")


@pytest.mark.parametrize(
    ("engine", "processes", "refused"),
    [
        ("opacus", 2, True),
        ("opacus", 1, False),
        ("ghost", 2, False),
    ],
)
def test_opacus_trains_in_one_process(engine: str, processes: int, refused: bool) -> None:
    study = study_of(
        methods={"net": tuned("all", engine=engine)}, fine_tuning={"processes": processes}
    )
    faults = list(network_faults(study))
    assert bool(faults) == refused
    assert all("fine_tuning.processes is 2" in fault for fault in faults)


def test_more_blocks_than_a_network_has_are_refused() -> None:
    study = study_of(backbones={"small": VIT, "large": VIT})
    assert list(blocks_faults(study, {"small": 9, "large": 12})) == []
    (fault,) = blocks_faults(study, {"small": 8, "large": 9})
    assert fault.startswith("methods.nine on backbones.small: ")
    assert "8" in fault
    assert "test_vit" in fault
    without = list(blocks_faults(study, {"small": 0}))
    assert [fault.split()[0] for fault in without] == [
        f"methods.{name}" for name in ("two", "again", "nine", "views")
    ]
