"""Options of heads: releases, rules and refusals over many settings, and where options stand."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import pytest
import torch

from dpprobe.heads import auto, search_space
from dpprobe.heads.balance import log_shifts, released_priors
from dpprobe.heads.default_search_spaces import SPACES
from dpprobe.heads.dimension_limits import MOST_FEATURES, dimension_fault
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.joint_fits import cohort_fault, sites_fault
from dpprobe.heads.options import check_counts
from dpprobe.heads.registry import METHODS, method_options
from dpprobe.heads.schedules import learning_rates, mixing_rates
from dpprobe.heads.second_order import Spectrum
from dpprobe.heads.whitening import compute_whitener
from dpprobe.options import options_class
from tests.support.stored_records import answer_of, check_values

MOMENTUM: dict[str, Any] = {"head": "momentum"}
SGD: dict[str, Any] = {"head": "sgd"}
TUNED: dict[str, Any] = {"head": "tuned", "base": SGD | {"steps": 5, "batch_size": "full"}}
RATES = {"search": {"learning_rate": [0.1, 2.0]}}
CHANNELS = {"kind": "channels", "channels": 243, "max_mean_norm": 1, "max_deviation_norm": 1}
WIDTHS = (1280, MOST_FEATURES, MOST_FEATURES + 1, 15_552)
WEIGHTS, FILE = [1, 0.5, 0.25], {"init": "file", "init_file": "{dataset}/{backbone}.npz"}
OF_SGD: list[dict[str, Any]] = [
    {"batch_size": "full"},
    {"batch_size": 0},
    {"batch_size": 31},
    {"batch_size": 30},
    {"batch_size": 3, "epochs": 100_000},
    {"class_priors": "released", "engine": "exact"},
    {"steps": 7},
    {"epochs": 0.001},
    {"epochs": 1, "batch_size": 30},
    {"epochs": 1, "steps": 7},
    {"engine": "exact"},
    {"loss": "sigmoid"},
    {"shuffle": True},
    {"init": "file"},
    FILE,
    *(FILE | {"init_file": f"w_{end}.npz"} for end in ("{}", "{0}", "{x}", "{")),
    {"init_file": "a"},
    FILE | {"init_scale": 2},
    {"init_scale": 2},
    {"init": "scaled"},
    {"warmup": 0.1},
    {"ema_decay": 0.9},
    {"average": "ema", "ema_decay": 0.9},
    {"unknown": 1},
    {"class_weights": WEIGHTS},
    {"class_weights": [0.5, 0.5]},
    {"class_weights": [2, 1, 1]},
    {"class_priors": [3, 1, 1, 1]},
    {"class_priors": "released", "loss": "sigmoid"},
    {"class_priors": "released", "prior_share": 0.1},
    {"prior_share": 0.1},
    {"batch_size": 1, "epochs": 20_000, "normalize": "centred"},
    {"class_weights": WEIGHTS, "loss": "sigmoid"},
    FILE | {"normalize": "whitened"},
]
OF_TUNED: list[dict[str, Any]] = [
    RATES,
    {"search": {}},
    {"search": {"steps": [5, 6]}},
    {"search": {"nothing": [1, 2]}},
    {"search": {"learning_rate": [0.1]}},
    {"search": {"learning_rate": {"low": 2, "high": 1}}},
    {"search": {"learning_rate": {"low": 0, "high": 1, "log": True}}},
    RATES | {"trials": 1},
    {"search": {"learning_rate": [1, 2], "max_grad_norm": {"low": 1, "high": 4, "log": True}}},
    {"search": {"learning_rate": [0.1, 1], "batch_size": [400, 40]}},
    {"normalize": "l2"},
    RATES | {"trials": 2.5, "score_share": 0.2},
    {"search": {"max_grad_norm": [0.1, 0.2]}},
    RATES | {"base": SGD | {"normalize": "centred"}},
    {"search": {"learning_rate": []}},
    {"search": {"learning_rate": search_space.Range(low=1, high=2)}},
    {"search": {"learning_rate": {"low": 1, "high": 1}}},
    {"search": {"learning_rate": {"low": -1, "high": 1, "log": True}}},
    {"search": {name: [*range(1, 66)] for name in ("learning_rate", "max_grad_norm")}},
    {
        "base": {
            "head": "feature_covariance",
            "normalize": "l2",
            "public_covariance": "{dataset}",
            "init": "file",
            "init_file": "{backbone}",
        },
        "search": {"ridge": [1, 2]},
    },
]
ALTERNATIVES: list[dict[str, Any]] = [
    *({"head": head} for head in METHODS),
    *(MOMENTUM | {"normalize": kind} for kind in ("l2", "whitened", "none", "layer_norm")),
    *(
        {"head": head, "normalize": kind}
        for head in ("sgd", "newton", "nonprivate", "prototypes")
        for kind in ("l2", "centred", "whitened")
    ),
    *(
        {"head": "newton", "steps": 1, "max_grad_norm": None, "loss": loss, "init_bias": bias}
        for loss in ("softmax", "sigmoid")
        for bias in (None, 0.0, 0.5)
    ),
    *({"head": head, "class_priors": "released"} for head in ("adam", "newton", "lamb")),
    {"head": "feature_covariance", "class_priors": WEIGHTS, "normalize": "l2"},
    *(
        {"head": "feature_covariance", "normalize": "l2", "public_covariance": file}
        for file in (None, "{dataset}.json")
    ),
    *({"head": "auto", "balanced": each} for each in (True, False)),
    *({"head": "nonprivate", "penalties": each} for each in ([0, 1], [1, 1], [math.inf], [])),
    *(TUNED | {"base": {"head": head}} for head in METHODS),
    *(SGD | each for each in OF_SGD),
    MOMENTUM | {"learning_rate": 1, "normalize": {"kind": "group_norm", "groups": 27}},
    MOMENTUM | {"learning_rate": 1, "normalize": CHANNELS},
    *(TUNED | each for each in OF_TUNED),
]


def answers_of(values: dict[str, Any]) -> Any:
    method = answer_of(method_options, values)
    if isinstance(method, Exception):
        return method
    properties = (
        "private",
        "multi_label",
        "private_choices",
        "is_exact",
        "counted_classes",
        "releases_priors",
        "running_sums",
    )
    said = {name: getattr(method, name) for name in properties}
    said |= {"link": answer_of(lambda: method.link), "files": method.public_files()}
    said["limited"] = answer_of(lambda: bool(method.engine_limits))
    said["filled"] = answer_of(lambda: method.fill_paths(dataset="a", backbone="b").input_files())
    said["features"] = [dimension_fault(method, each) for each in WIDTHS]
    said["classes"] = [
        method.class_fault(classes, multi_label=several)
        for classes, several in ((3, False), (4, False), (4, True))
    ]
    said["joint"] = [cohort_fault(method), answer_of(sites_fault, method)]
    for n in (30, 1437):
        selection = answer_of(method.priced_selection, n)
        said[f"n {n}"] = [answer_of(price, method, n), selection]
    empty: tuple[Any, ...] = None, {}, (), *([None] * count for count in (2, 3, 4))
    return {name: value for name, value in said.items() if value not in empty}


def price(method: Any, n: int) -> list[str]:
    check_counts(mechanisms := method.list_mechanisms(n))
    return [
        f"{each.name}{' anew' * ('own norm' in each.released)}: {each.count} of "
        f"{each.sample_rate:.6g}, {each.sensitivity:.6g} {each.noise_multiplier:.6g}"
        for each in mechanisms
    ]


def test_what_each_setting_of_a_head_releases_and_refuses() -> None:
    check_values("options_of_heads", {str(each): answers_of(each) for each in ALTERNATIVES})


def test_rules_of_rates_averages_spaces_and_priors() -> None:
    found: dict[str, Any] = {"rates": {}, "averages": {}, "chosen": {}}
    for schedule, warmup, steps in itertools.product(
        ("constant", "warmup_cosine", "warmup_linear"), (0.0, 0.25, 0.99), (1, 2, 3, 10)
    ):
        values = SGD | {"schedule": schedule, "learning_rate": 0.4}
        method = method_options(values | ({"warmup": warmup} if schedule != "constant" else {}))
        assert isinstance(method, GradientOptions)
        found["rates"][f"{schedule} {warmup} {steps}"] = learning_rates(method, steps).tolist()
        found["rates"][f"{schedule} {warmup} {steps}, 2"] = learning_rates(method, steps, 2.0)[-1]
    for average in (
        {},
        {"average": "mean"},
        {"average": "ema"},
        {"average": "ema", "ema_decay": 0.5},
    ):
        method = method_options(SGD | average)
        assert isinstance(method, GradientOptions)
        found["averages"][str(average)] = mixing_rates(method, 4)
    for head, steps, noise, (classes, dimension) in itertools.product(
        ("momentum", "adam", "lamb"), (1, 40, 1000), (0.0, 0.01, 3.0), ((2, 7), (30, 1280))
    ):
        method = method_options({"head": head})
        assert isinstance(method, GradientOptions)
        sizes = {"noise": noise, "classes": classes, "dimension": dimension}
        found["chosen"][f"{head} {steps} {sizes}"] = answer_of(method.choose_rate, steps, **sizes)
    found["spaces"] = {
        head: answer_of(lambda h: dict(method_options(TUNED | {"base": {"head": h}}).search), head)  # type: ignore[attr-defined]
        for head in SPACES
    }
    ranges = [search_space.Range(low=0.5, high=8, log=log) for log in (False, True)]
    found["ranges"] = [
        [
            *(each.value_at(place) for place in (0, 0.25, 0.5, 1)),
            *search_space.list_probes(each),
            *map(each.round_value, (0.4, 1 / 1.5, 9.0)),
        ]
        for each in ranges
    ]
    corners = list(search_space.list_corners({"a": (1, 2), "b": ranges[0]}))
    found["corners"] = [search_space.spell_options(each) for each in corners]
    spectra = [Spectrum(torch.tensor(each).double(), torch.eye(2)) for each in ([0, 0], [9, 0.1])]
    found["whiteners"] = [
        compute_whitener(each, exponent, noise=noise, n=50)
        for each in spectra
        for exponent in (0.5, 0.25)
        for noise in (0.0, 0.5)
    ]
    found["shifts"] = [log_shifts(each) for each in ((), (1.0,), (0.5, 0.25, 0.25), (3.0, 1.0))]
    found["priors"] = [
        released_priors(counts, deviation)
        for counts, deviation in (
            ([60, 30, 10], 0.0),
            ([60, 30, 10], 10.0),
            ([60, 30, -500], 10.0),
            ([9, 0, 0], 0.0),
            ([-3, -5, 1], 100.0),
            ([9, 1, 0.5], 0.25),
            ([9, 1, 0.5], 0.75),
        )
    ]
    check_values("rules_of_heads", found)


def test_the_rule_of_auto_over_facts() -> None:
    found: dict[str, Any] = {}
    trained: dict[str, Any] = {}  # whoever changes a default that it takes raises `auto_rule.RULE`
    for n, dimension, epsilon, several, asked in itertools.product(
        (300, 50_000),
        (6, 1280, MOST_FEATURES, MOST_FEATURES + 1),
        (0.1, 0.5, 8.0, math.inf),
        (False, True),
        ({}, {"balanced": True}),
    ):
        facts = DataFacts(
            n=n,
            dimension=dimension,
            classes=3,
            multi_label=several,
            epsilon=epsilon,
            delta=1e-4,
            unit="image",
        )
        method = method_options({"head": "auto"} | asked)
        chosen = answer_of(method.resolve_choice, facts)
        if not isinstance(chosen, Exception):
            assert auto.is_undecided(method)
            assert not auto.is_undecided(chosen)
            said = auto.describe_choice(chosen, facts) or {}
            assert {**facts.to_dict(), **said} == said
            assert auto.asked_options(method)["rule"] == auto.asked_options(chosen)["rule"] == 2
            head = auto.trained_head(chosen)
            chosen = [said["rule"], head.normalize.kind, head.link, *price(chosen, n)]
            trained[f"{head.normalize.kind} {head.link} {asked}"] = head
        found[f"{n} {dimension} {epsilon} {several} {asked}"] = chosen
    autos = ({"head": "auto"} | asked for asked in ({}, {"balanced": False}, {"balanced": True}))
    found["trained"] = trained
    found["asked"] = [auto.asked_options(method_options(each)) for each in autos]
    check_values("choices_of_auto", found)


@pytest.mark.parametrize("name", METHODS)
def test_all_options_of_a_head_stand_in_its_file_and_one_other(name: str) -> None:
    cls = options_class(METHODS, name)
    assert cls.__module__ == METHODS[name]
    owners = {
        next(each.__module__ for each in cls.__mro__ if option in inspect.get_annotations(each))
        for option in set(cls.model_fields) - {"head", "normalize"}
    }
    assert len(owners - {cls.__module__}) <= 1
