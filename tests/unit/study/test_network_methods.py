"""Networks in a study: which methods train them, and what is refused before any job."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.network_methods import (
    head_methods,
    network_cells,
    network_methods,
    searched_methods,
)
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
    tuned = {"head": "tuned", "base": BLOCKS, "search": {"learning_rate": [0.1, 1.0]}}
    searched = BLOCKS | {"search": SEARCH}
    study = load(methods={"sgd": {"head": "sgd"}, "net": BLOCKS, "t": tuned, "s": searched})
    assert head_methods(study, "1") == ("sgd",)
    assert network_methods(study) == ("net", "t", "s")
    assert searched_methods(study) == ("s",)
    assert [cell[2:] for cell in network_cells(study)] == [
        (method, epsilon) for epsilon in ("1", "inf") for method in ("net", "t", "s")
    ]
    assert study.job_methods("1") == ("sgd", "net", "t", "s")
    check_study(study)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"backbones": {"pixels": {"family": "pixels"}}},
            "methods.net: backbones.pixels: family pixels has no network to train",
        ),
        (
            {"backbones": {"vit": VIT | {"preprocessing": {"crop": "inception"}}}},
            "methods.net: backbones.vit: preprocessing.crop: inception",
        ),
        (
            {"backbones": {"vit": VIT | {"preprocessing": {"flip": True}}}},
            "methods.net: backbones.vit: preprocessing.flip",
        ),
        (
            {
                "releases": {
                    "out": {"dataset": "digits", "backbone": "vit", "method": "net", "epsilon": 1}
                }
            },
            "releases.out: method net: it trains a network",
        ),
        (
            {"tracking": {"register_heads": ["digits/vit/net/*"]}},
            "tracking.register_heads: 'digits/vit/net/*': method net trains a network",
        ),
        ({"audit": {}}, "audit: methods: net: audits train linear heads, not networks"),
        (
            {"methods": {"net": BLOCKS | {"batch_size": 100_000}}},
            "methods.net on datasets.digits: batch_size 100000 is above",
        ),
    ],
)
def test_what_no_network_can_do_is_refused_before_any_job(
    changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_study(load(**changes))
    assert f"config: {fault}" in str(caught.value)


def test_a_search_may_have_a_batch_of_more_than_a_million_rows() -> None:
    search = {"space": {"learning_rate": [0.1, 1.0]}}
    large = {"batch_size": 2**20, "steps": None, "epochs": 10, "search": search}
    assert load(methods={"net": BLOCKS | large}).methods["net"].model_dump()["search"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tune": {"blocks": 0}}, "methods.net.tune.blocks: 0: input should be greater than"),
        ({"tune": {"lora": {"rank": 0}}}, "methods.net.tune.lora.rank: 0: input should be"),
        ({"tune": {"blocks": 1, "lora": {}}}, "methods.net.tune: {'blocks': 1, 'lora': {}}: write"),
        ({"tune": "last"}, "methods.net.tune: 'last': write head, all, bias, norm, film"),
        (
            {"search": {"space": {"steps": [2, 3]}}},
            "methods.net: search.space.steps: 3: it changes",
        ),
        (
            {"search": {"space": {"loss": ["softmax", "sigmoid"]}}},
            "methods.net: search.space.loss: 'sigmoid': it changes what scores are",
        ),
        (  # each fits the base, but not one another
            {
                "average": "ema",
                "search": {"space": {"average": ["ema", "last"], "ema_decay": [0.9, 0.99]}},
            },
            "methods.net: search.space: average 'last', ema_decay 0.9: ema_decay 0.9 says nothing",
        ),
        (
            {"probe": {"method": {"head": "sgd", "class_weights": [1, 0.5]}}},
            "methods.net on datasets.digits: probe: class_weights has 2 numbers",
        ),
    ],
)
def test_a_wrong_option_is_told_in_one_line_before_any_job(
    options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_study(load(methods={"net": BLOCKS | options}))
    assert str(caught.value).startswith(f"config: {fault}")
    assert "\n" not in str(caught.value)


def test_views_are_refused_at_a_cut_alone() -> None:
    flipped = {"vit": VIT | {"preprocessing": {"flip": True}}}
    for tune in ("head", "all", "bias"):
        check_study(load(backbones=flipped, methods={"net": BLOCKS | {"tune": tune}}))


def test_other_methods_are_audited_and_registered_beside_a_network() -> None:
    check_study(load(audit={"methods": ["sgd"]}, tracking={"register_heads": ["digits/vit/*"]}))
