"""Networks in a study: the methods that train them, and the activations that they start from."""

from __future__ import annotations

from typing import Any

from dpprobe.study.cuts import Cut, study_cuts
from dpprobe.study.network_methods import head_methods, network_methods, searched_methods
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study

VIT = {"family": "timm", "model": "test_vit", "pretrained": False}
BLOCKS = {"head": "fine_tune", "tune": {"blocks": 1}, "steps": 2}
SEARCH = {"space": {"learning_rate": [0.1, 1.0]}}


def load(**changes: Any) -> Study:
    study: dict[str, Any] = {
        "study": "nets",
        "datasets": {"digits": {"source": "sklearn"}},
        "backbones": {"vit": VIT},
        "methods": {"sgd": {"head": "sgd"}, "net": BLOCKS},
        "epsilons": [1, "inf"],
    }
    return load_study(study | changes)


def test_heads_and_networks_are_told_apart() -> None:
    searched = BLOCKS | {"search": SEARCH}
    study = load(methods={"sgd": {"head": "sgd"}, "net": BLOCKS, "s": searched})
    assert head_methods(study, "1") == ("sgd",)
    assert network_methods(study) == ("net", "s")
    assert searched_methods(study) == ("s",)
    assert study.job_methods("1") == ("sgd", "net", "s")
    check_study(study)


def test_a_search_may_have_a_batch_of_more_than_a_million_rows() -> None:
    search = {"space": {"learning_rate": [0.1, 1.0]}}
    large = {"batch_size": 2**20, "steps": None, "epochs": 10, "search": search}
    assert load(methods={"net": BLOCKS | large}).methods["net"].model_dump()["search"]


def tuned(tune: Any, **values: Any) -> dict[str, Any]:
    return {"head": "fine_tune", "tune": tune, "steps": 2, **values}


def cuts(*methods: dict[str, Any], datasets: tuple[str, ...] = ("digits",)) -> list[Cut]:
    return study_cuts(
        load(
            datasets={name: {"source": "sklearn"} for name in datasets},
            backbones={"one": VIT, "two": VIT},
            methods={f"m{number}": method for number, method in enumerate(methods)},
        )
    )


def test_blocks_are_stored_once_for_all_methods_and_epsilons() -> None:
    two = tuned({"blocks": 2})
    found = cuts(two, tuned({"blocks": 2}, learning_rate=0.1), tuned({"blocks": 4}))
    assert found == [Cut("digits", name, blocks) for name in ("one", "two") for blocks in (2, 4)]
    assert [cut.dataset for cut in cuts(two, datasets=("b", "a"))] == ["b", "b", "a", "a"]
    elsewhere = (tuned("head"), tuned("all"), tuned({"blocks": 2}, augment={"views": 2}))
    assert cuts({"head": "sgd"}, *elsewhere) == []
