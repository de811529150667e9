"""What studies mean: cells, units, limits, comparisons, cuts; held against the stored answers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe.data.options import ClassUnits
from dpprobe.errors import ConfigError
from dpprobe.study import catalog, comparisons
from dpprobe.study.check_command import list_tested
from dpprobe.study.cuts import study_cuts
from dpprobe.study.few_rows import few_rows_warnings
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.network_methods import (
    blocks_faults,
    head_methods,
    network_faults,
    network_methods,
    searched_methods,
)
from dpprobe.study.release_data import release_delta
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY
from tests.support.stored_records import answer_of, check_values

DIGITS = {"source": "sklearn", "name": "digits"}
PART = DIGITS | {"subsample": {"per_class": 6}}
CHEXPERT = {"catalog": "chexpert", "root": "x"}
PATIENTS = {
    "source": "csv",
    "root": "images",
    "train": "a.csv",
    "path_column": "file",
    "label_column": "kind",
    "class_names": ["a", "b"],
    "split_by": "id",
    "unit_column": "who",
}
VIT = {"family": "timm", "model": "test_vit", "pretrained": False}
CLIP = {"family": "open_clip", "model": "ViT-S-32-alt", "pretrained": False}
SGD, CEILING, AUTO = {"head": "sgd"}, {"head": "nonprivate"}, {"head": "auto"}
EXACT = {"head": "sgd", "engine": "exact"}


def tuned(tune: Any, **values: Any) -> dict[str, Any]:
    return {"head": "fine_tune", "tune": tune, "steps": 2, **values}


SEARCH = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}}
NETWORKS = {
    "sgd": SGD,
    "two": tuned({"blocks": 2}),
    "again": tuned({"blocks": 2}, learning_rate=0.1),
    "four": tuned({"blocks": 9}, search=SEARCH),
    "all": tuned("all"),
    "head": tuned("head"),
    "views": tuned({"blocks": 3}, augment={"views": 2}),
    "many": tuned({"blocks": 13}),
}
RELEASE = {"dataset": "digits", "backbone": "pixels", "method": "sgd", "epsilon": 1.0}
RARE = {"datasets": ["digits"], "classes": [3, "8"], "fractions": [0.05, 1, 0.5]}
STUDIES: dict[str, dict[str, Any]] = {
    "small": {},
    "inf is not listed": {"epsilons": [1]},
    "no ceiling": {"methods": {"sgd": SGD}, "epsilons": [10, 2, 1, 0.5]},
    "without privacy": {
        "epsilons": ["inf"],
        "backbones": {"pixels": {"family": "pixels"}, "grey": {"family": "scattering"}},
    },
    "only the ceiling": {"methods": {"ceiling": CEILING}},
    "a search without a price": {"methods": {"auto": AUTO}, "epsilons": [1]},
    "public": {"public_datasets": {"other": DIGITS | {"split_seed": 1}}},
    "a public namesake": {"public_datasets": {"digits": DIGITS}},
    "a part, before the whole": {
        "datasets": {
            "part": PART,
            "digits": DIGITS,
            "again": DIGITS,
            "other": DIGITS | {"split_seed": 3},
        }
    },
    "a part alone": {"datasets": {"part": PART}},
    "two deltas": {
        "datasets": {
            "digits": DIGITS,
            "b": DIGITS | {"delta": 1e-6},
            "c": DIGITS | {"split_seed": 3, "allow_delta_above_one_over_n": False},
        },
        "allow_delta_above_one_over_n": True,
    },
    "a public part": {"public_datasets": {"part": PART}},
    "rare classes": {"imbalance": RARE, "datasets": {"digits": DIGITS | {"delta": 1e-6}}},
    "rare classes of one of two": {
        "imbalance": RARE,
        "datasets": {"digits": DIGITS, "again": DIGITS | {"split_seed": 4}},
    },
    "a rare class of a name": {
        "datasets": {"digits": {"catalog": "cifar10"}},
        "imbalance": RARE | {"classes": ["A-b c", "(d!)", "?"], "fractions": [1e-4, 0.3]},
    },
    "rare classes of both": {
        "imbalance": RARE | {"datasets": ["b", "digits"]},
        "datasets": {
            "digits": DIGITS,
            "b": DIGITS | {"split_seed": 4},
            "other": DIGITS | {"split_seed": 5},
        },
    },
    "a rare class of a part": {"imbalance": RARE, "datasets": {"digits": PART}},
    "a rare class of nothing": {"imbalance": RARE | {"datasets": ["none"]}},
    "a rare class's name is taken": {
        "imbalance": RARE,
        "datasets": {"digits": DIGITS, "digits_3_0p5": DIGITS},
    },
    "one rare class twice": {"imbalance": RARE | {"classes": [3, "3"]}},
    "no rare class": {"imbalance": RARE | {"fractions": [1]}},
    "patients": {
        "datasets": {
            "digits": PATIENTS,
            "few": PATIENTS | {"unit": "image", "max_images_per_patient": 3},
        },
        "privacy": {"max_epsilon": {"few": 3}},
    },
    "images of patients": {
        "datasets": {"digits": PATIENTS, "own": PATIENTS | {"unit": "patient"}},
        "privacy": {"unit": "image", "max_epsilon": 2},
    },
    "no patient": {"privacy": {"unit": "patient"}},
    "two sizes": {"backbones": {"pixels": VIT, "vit_64": VIT | {"preprocessing": {"size": 64}}}},
    "networks": {
        "methods": NETWORKS,
        "backbones": {"pixels": VIT, "two": VIT},
        "datasets": {"digits": DIGITS, "a": DIGITS | {"split_seed": 1}},
    },
    "networks of what has none": {
        "methods": NETWORKS,
        "releases": {"one": RELEASE | {"method": "two"}},
    },
    "networks of crops": {
        "methods": NETWORKS,
        "backbones": {
            "pixels": VIT | {"preprocessing": {"crop": "inception"}},
            "flip": VIT | {"preprocessing": {"flip": True}},
            "ten": VIT | {"preprocessing": {"crops": 4}},
        },
    },
    "text": {"backbones": {"pixels": {"family": "pixels"}, "clip": CLIP}},
    "text, few shots": {
        "backbones": {"pixels": {"family": "pixels"}, "clip": CLIP},
        "few_shot": {},
    },
    "few shots of pixels": {
        "backbones": {"pixels": {"family": "pixels"}, "clip": CLIP},
        "few_shot": {"backbones": ["pixels"]},
    },
    "papers": {
        "datasets": {
            "digits": {"catalog": "cifar10"},
            "b": {"catalog": "cifar10"} | {"subsample": {"per_class": 5}},
        },
        "papers": {"datasets": {"digits": "cifar100"}},
    },
    "real labels": {"datasets": {"digits": {"catalog": "imagenet"}}},
    "releases": {
        "methods": {"sgd": EXACT},
        "releases": {
            "one": RELEASE,
            "two": RELEASE | {"delta": 1e-7, "predecessor": "one", "epsilon": {"advantage": 0.1}},
        },
        "privacy": {"max_risk": {"true_positives": 0.02, "at": 0.01}},
    },
    "releases in a circle": {
        "methods": {"sgd": EXACT},
        "releases": {
            "one": RELEASE | {"predecessor": "two"},
            "two": RELEASE | {"predecessor": "one"},
        },
    },
    "a release of nothing": {"releases": {"one": RELEASE | {"backbone": "none"}}},
    "fractions": {"datasets": {"digits": DIGITS | {"subsample": {"fractions": {"3": 0.5}}}}},
    "a fraction": {
        "datasets": {
            "digits": DIGITS | {"split_by": "id", "subsample": {"fraction": 0.5, "seed": 7}}
        }
    },
    "risks": {"epsilons": [{"advantage": 0.1}, 1, {"true_positives": 0.02, "at": 0.01}]},
    "a search and risks": {
        "epsilons": [{"advantage": 0.1}],
        "methods": {"s": tuned("head", search=SEARCH)},
    },
    "a fixed rule": {"methods": {"auto": AUTO | {"rule": 1}}},
    **{
        f"risks {risk}": {"epsilons": risk}
        for risk in (
            [{"advantage": 0.1}, 1, {"advantage": 0.10}],
            [{"advantage": 1}],
            [{"advantages": 0.1}],
            [{"true_positives": 0.01, "at": 0.1}],
            [{"advantage": 0.001}],
        )
    },
    **{
        f"limits {limit}": {"privacy": {"max_risk": limit}}
        for limit in ({}, {"at": 0.01}, {"true_positives": 0.01, "at": 0.1}, {"advantage": 2})
    },
    **{
        f"epsilons {each!r}": {"epsilons": each}
        for each in ([0.01, 100], [0.12345, 0.12346], [1, 0.009], [101], [1, 1.0], [], 0.5, "0.5")
    },
    "an overlap of nothing": {"overlap": {"public": ["other"]}},
    "an overlap of crops": {
        "overlap": {"public": ["other"]},
        "public_datasets": {"other": DIGITS},
        "backbones": {"pixels": VIT | {"preprocessing": {"crop": "inception"}}},
    },
    **{
        f"tracking {uri}": {"tracking": {"uri": uri}}
        for uri in (
            "sqlite:///a.db",
            "sqlite://",
            "sqlite:///a/",
            "sqlite:////",
            "http:///h",
            "http://h",
            "https://me:geheim@h",
            "h",
            "https://me@h",
            "postgresql://me:geheim@h/db",
            "http://me:geheim@[",
            "http://h:99999",
            "https://a b",
        )
    },
    "tracking of a named study": {"study": "mine", "tracking": {"uri": "https://h:5000"}},
    "folders": {"results_dir": "results/", "data_dir": "./a/b"},
    "absolute folders": {"results_dir": "/scratch/jürgen/x-1/", "data_dir": "../a"},
    "vectors": {
        "datasets": {
            "digits": {
                "source": "embeddings",
                "train": "a",
                "test": "b",
                "label_column": "y",
                "class_names": ["a", "b"],
            }
        }
    },
    "public vectors": {
        "public_datasets": {
            "other": {
                "source": "embeddings",
                "train": "a",
                "test": "b",
                "label_column": "y",
                "class_names": ["a", "b"],
            }
        }
    },
    "images of vectors": {
        "backbones": {"pixels": {"family": "external", "model": "m", "each_by_itself": True}},
        "few_shot": {},
    },
}


def describe(study: Study) -> dict[str, Any]:
    of_each = {
        name: [
            study.dataset_delta(name),
            study.allows_delta_above(name),
            study.max_epsilon(name),
            study.dataset_unit(name),
            study.dataset_patients(name),
            comparisons.dataset_comparisons(study, name),
            next(iter(study.dataset_promise(name).list_promise_faults("patient")), None),
            study.dataset_promise(name).subsample,
        ]
        for name in study.datasets
    }
    return {
        "datasets": of_each,
        "all": list(study.all_datasets()),
        "whole": study.whole_datasets(),
        "cells": ["/".join(cell) for cell in study.list_cells()],
        "cells of the last": len(study.list_cells([*study.datasets][-1])),
        "heads": {
            token: [study.job_methods(token), head_methods(study, token)]
            for token in study.job_epsilons()
        },
        "networks": [
            network_methods(study),
            searched_methods(study),
            list(network_faults(study)),
            list(blocks_faults(study, dict.fromkeys(study.backbones, 12))),
            list(blocks_faults(study, dict.fromkeys(study.backbones, 0)))[:1],
        ],
        "cuts": [list(cut) for cut in study_cuts(study)],
        "cuts of the last": len(study_cuts(study, [*study.datasets][-1])),
        "text": [study.text_backbones(), study.few_shot_backbones()],
        "papers": [study.published_names(), study.part_names(), sorted(study.paper_names())],
        "rare": rare_classes(study.imbalance),
        "none": rare_classes(study.imbalance, "none"),
        "rare of one": [each.name for each in rare_classes(study.imbalance, "digits")],
        "compared": [
            comparisons.study_comparisons(study),
            comparisons.compared_datasets(study),
            comparisons.delta_groups(study),
            list(comparisons.list_guaranteed(study)),
        ],
        "releases": {
            name: [release_delta(study, name), each.token, each.test_metric]
            for name, each in study.releases.items()
        },
        "limit": study.max_risk,
        "folders": [study.results_dir, study.data_dir],
    }


def test_studies_mean_what_is_stored() -> None:
    answers: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for name, changes in STUDIES.items():
        try:
            told = describe(load_study(STUDY | changes))
        except ConfigError as error:
            answers[name] = str(error).splitlines()
            continue
        answers[name] = {key: value for key, value in told.items() if first.get(key) != value}
        first = first or told
    assert "geheim" not in "".join(map(str, answers.values()))
    check_values("studies", answers)


def test_too_few_images_for_an_epsilon_are_warned_of(tmp_path: Path) -> None:
    """The fewest features stand for all; unknown ones stand for the most favourable."""
    told: dict[str, Any] = {}
    rows = tmp_path / "rows.csv"
    rows.write_text("image,kind,one,two\n1.png,a,0,1\n2.png,b,1,1\n3.png,c,1,0\n")
    table = {"source": "csv", "root": str(tmp_path), "train": "rows.csv", "test": "rows.csv"}
    whole = {
        "a": DIGITS,
        "b": PART | {"delta": 1e-3},
        **{
            name: table | {"label_column": "kind", "class_names": [*classes]}
            for name, classes in {"few": "abcd", "as_many": "abc"}.items()
        },
        "labels": table | {"label_columns": ["one", "two"]},
    }
    sizes: list[list[int | None]] = [[64], [1280, 64], [1280], [1280, 512], [1280, None], []]
    for epsilons in ([0.1, "inf"], [1], [1, 0.1, {"advantage": 0.05}], ["inf"]):
        for methods in ({"sgd": SGD}, {"ceiling": CEILING}, {"a": CEILING, "b": SGD}):
            study = STUDY | {"datasets": whole, "epsilons": epsilons, "methods": methods}
            with suppress(ConfigError):  # non-private methods train at inf alone
                loaded = load_study(study)
                lines = [few_rows_warnings(loaded, dimensions) for dimensions in sizes]
                told[f"{epsilons} {[*methods]}"] = lines
    check_values("too_few_rows", told)


EUROSAT = {"catalog": "eurosat"}
WRITTEN: list[dict[str, Any]] = [
    EUROSAT,
    EUROSAT | {"split_seed": 3, "metric": "accuracy", "prompts": "simple"},
    EUROSAT | {"test_fraction": 0.5},
    EUROSAT | {"test_fraction": 0.2},
    CHEXPERT,
    {"catalog": "chexpert"},
    {"catalog": "mimic_cxr"},
    {"catalog": "cifar_10"},
    {"catalog": "???"},
    {"catalog": 5},
    {"catalog": "chexpert", "source": "imagefolder", "path": "x"},
    CHEXPERT | {"uncertain": {"Edema": "zeros", "Cardiomegaly": "drop", "Fracture": "ones"}},
    {"catalog": "chexpert", "source": "parquet", "train": "a", "test": "b", "filters": {"a": 1}},
    *(
        CHEXPERT | each
        for each in (
            {"filters": {"Sex": ["Male"]}},
            {"uncertain": "drop"},
            {"uncertain": {"Edema": "drop"}},
            {"missing": "drop"},
            {"test": None},
            {"train": "other.csv"},
            {"uncertain": "zeros"},
            {"test": None, "split_column": "split", "test_values": ["validate"]},
            {"test": "CheXpert-v1.0-small/valid.csv"},
            {"limit": {"train": 9}},
            {"split_by": "id"},
        )
    ),
]
ENTRY = {
    "dimension": 64,
    "options": {
        "family": "timm",
        "model": "m",
        "pretrained": "tag",
        "model_args": {"depth": 2, "side": 8},
        "preprocessing": {"size": 64, "crop": "centre"},
    },
}
BACKBONE_CHANGES: list[dict[str, Any]] = [
    {},
    {"model_args": {"side": 9}, "preprocessing": {"crop": "none"}, "dimension": 65},
    {"checkpoint": "w.pt"},
    {"checkpoint": None, "pretrained": False},
    {"catalog": "vit_b15"},
    {"preprocessing": None, "model_args": {}},
    {"catalog": "cat"},
]


def test_what_naming_an_entry_of_the_catalog_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dataset what differs from its entry, and the sizes that rows are held against."""
    answers: dict[str, Any] = {}
    for values in WRITTEN:
        made = answer_of(catalog.complete_dataset, values)
        if isinstance(made, dict):
            entry = catalog.dataset_entry(values["catalog"])
            made = {
                key: value for key, value in made.items() if entry.options.get(key, ...) != value
            }
        answers[str(values)] = made
    monkeypatch.setattr(catalog, "backbone_entries", lambda: {"vit_b16": ENTRY, "vit_l16": ENTRY})
    for changes in BACKBONE_CHANGES:
        answers[str(changes)] = answer_of(
            catalog.complete_backbone, {"catalog": "vit_b16", **changes}
        )
    check_values("catalog_completed", answers)


def test_classes_with_the_fewest_test_units_are_listed() -> None:
    counts = dict.fromkeys(("d", "c", "b", "a"), 7) | {"few": 2, "e": 1234}
    units = {
        "ties": ClassUnits(train={}, test=counts, test_at={}),
        "unknown": None,
        "shares": ClassUnits(train={}, test=counts, test_at={}, test_shares={"b": 1.5, "a": 1.25}),
    }
    metrics = ("auc", "macro_accuracy", "auc")
    study: Any = SimpleNamespace(
        releases={
            name: SimpleNamespace(dataset=name, test_metric=metric)
            for name, metric in (*zip(units, metrics, strict=True), ("a", None), ("b", "accuracy"))
        },
        datasets={
            name: SimpleNamespace(count_class_units=lambda each=each: each)
            for name, each in units.items()
        },
        dataset_unit=lambda name: "patient" if name == "shares" else "image",
    )
    check_values("fewest_test_units", list(list_tested(study)))
