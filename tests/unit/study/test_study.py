"""A study determines its cells, deltas, limits and units, and the names of its datasets."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError
from dpprobe.privacy.risk import Risk
from dpprobe.release_part_registry import load_parts
from dpprobe.study.comparisons import whole_datasets
from dpprobe.study.published_names import paper_names, part_names, published_names, unpublished_name
from dpprobe.study.release_data import release_delta, release_delta_fault
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

DIGITS = {"source": "sklearn", "name": "digits"}
PART = DIGITS | {"subsample": {"per_class": 6}}
CIFAR = {"catalog": "cifar10"}
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
CLIP = {"family": "open_clip", "model": "ViT-S-32-alt", "pretrained": False}
EXACT = {"head": "sgd", "engine": "exact"}
RELEASE = {"dataset": "digits", "backbone": "pixels", "method": "sgd", "epsilon": 1.0}


def study_of(**changes: Any) -> Study:
    return load_study(STUDY | changes)


def several(*names: str, **values: Any) -> dict[str, Any]:
    """Returns datasets with different images."""
    return {name: DIGITS | {"split_seed": n} | values for n, name in enumerate(names)}


# Cells


@given(
    datasets=st.integers(1, 3),
    backbones=st.integers(1, 3),
    private=st.integers(0, 2),
    open_methods=st.integers(0, 2),
    epsilons=st.lists(st.sampled_from([0.5, 1, 8, "inf"]), min_size=1, max_size=4, unique=True),
)
def test_each_private_method_has_each_epsilon_and_others_have_inf_alone(
    datasets: int, backbones: int, private: int, open_methods: int, epsilons: list[Any]
) -> None:
    methods = {f"p{n}": {"head": "sgd"} for n in range(private)}
    methods |= {f"o{n}": {"head": "nonprivate"} for n in range(open_methods)}
    names = {f"b{n}": {"family": "pixels"} for n in range(backbones)}
    values = {
        "datasets": several(*(f"d{n}" for n in range(datasets))),
        "backbones": names,
        "methods": methods,
        "epsilons": epsilons,
    }
    expected = {
        (f"d{d}", f"b{b}", method, str(epsilon))
        for d, b, (method, options) in product(range(datasets), range(backbones), methods.items())
        for epsilon in (epsilons if options["head"] == "sgd" else ["inf"])
    }
    if not expected:
        return
    study = load_study(STUDY | values)
    cells = study.list_cells()
    assert len(cells) == len(expected)
    assert set(cells) == expected
    assert study.list_cells("d0") == [cell for cell in cells if cell.dataset == "d0"]
    asked = dict.fromkeys([*map(str, epsilons), "inf"])  # in the study's order
    assert study.job_epsilons() == tuple(e for e in asked if study.job_methods(e))
    assert {cell.epsilon for cell in cells} == set(study.job_epsilons())


def test_cells_follow_the_order_of_the_study() -> None:
    study = study_of(
        datasets=several("b", "a"),
        backbones={"y": {"family": "pixels"}, "x": {"family": "pixels"}},
        methods={"sgd": {"head": "sgd"}, "ceiling": {"head": "nonprivate"}},
        epsilons=[8, 1],
    )
    per_backbone = [("sgd", "8"), ("sgd", "1"), ("ceiling", "inf")]
    assert study.list_cells() == [
        (dataset, backbone, *rest)
        for dataset in ("b", "a")
        for backbone in ("y", "x")
        for rest in per_backbone
    ]


# Epsilons are kept as written


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ([0.01, 100], ("0.01", "100")),
        ([1.0, 0.50, "inf"], ("1", "0.5", "inf")),
        ([0.12345, 0.12346], ("0.12345", "0.12346")),
        ([2, {"advantage": 0.10}], ("2", "advantage-0.1")),
        ([{"true_positives": 0.02, "at": 0.01}], None),
    ],
)
def test_epsilons_become_tokens(written: list[Any], tokens: tuple[str, ...] | None) -> None:
    study = study_of(epsilons=written, methods={"sgd": {"head": "sgd"}})
    assert len(study.epsilons) == len(written)
    if tokens is not None:
        assert study.epsilons == tokens
    assert load_study(STUDY | {"epsilons": written}).epsilons == study.epsilons


def test_at_most_1000_epsilons() -> None:
    steps = [1 + n / 1000 for n in range(1001)]
    assert len(study_of(epsilons=steps[:1000]).epsilons) == 1000
    with pytest.raises(Exception, match="1,001 epsilons: at most 1,000"):
        study_of(epsilons=steps)


# Delta, limits and units


def test_a_dataset_s_own_delta_and_permission_come_before_the_study_s() -> None:
    study = study_of(
        delta=1e-6,
        allow_delta_above_one_over_n=True,
        datasets={
            "plain": DIGITS,
            "own": DIGITS | {"delta": 1e-7, "allow_delta_above_one_over_n": False},
        },
    )
    assert (study.dataset_delta("plain"), study.dataset_delta("own")) == (1e-6, 1e-7)
    assert (study.allows_delta_above("plain"), study.allows_delta_above("own")) == (True, False)
    assert not study_of().allows_delta_above("digits")


@pytest.mark.parametrize(
    ("limit", "of_a", "of_b"), [(None, None, None), (3, 3, 3), ({"a": 2}, 2, None)]
)
def test_a_limit_holds_for_all_datasets_or_for_those_it_names(
    limit: Any, of_a: float | None, of_b: float | None
) -> None:
    study = study_of(datasets=several("a", "b"), privacy={"max_epsilon": limit})
    assert (study.max_epsilon("a"), study.max_epsilon("b")) == (of_a, of_b)


def test_a_limit_on_risk_is_that_risk() -> None:
    assert study_of().max_risk is None
    written = {"true_positives": 0.02, "at": 0.01}
    assert study_of(privacy={"max_risk": written}).max_risk == Risk(**written)


@pytest.mark.parametrize(
    ("own", "of_study", "unit"),
    [
        ({}, None, "patient"),
        ({}, "image", "image"),
        ({"unit": "image"}, None, "image"),
        ({"unit": "patient"}, "image", "patient"),
        ({"unit": "image"}, "patient", "image"),
    ],
)
def test_the_unit_is_the_dataset_s_then_the_study_s_then_the_columns(
    own: dict[str, Any], of_study: str | None, unit: str
) -> None:
    dataset = PATIENTS | own
    study = study_of(datasets={"p": dataset}, privacy={"unit": of_study} if of_study else {})
    assert study.dataset_unit("p") == unit
    # images of patients: the number per patient is unknown, or the written limit
    expected = {"images": None} if unit == "image" else None
    assert study.dataset_patients("p") == expected
    limited = study_of(
        datasets={"p": dataset | {"max_images_per_patient": 3}},
        privacy={"unit": of_study} if of_study else {},
    )
    assert limited.dataset_patients("p") == ({"images": 3} if unit == "image" else None)


def test_images_without_patients_are_their_own_units() -> None:
    study = study_of()
    assert study.dataset_unit("digits") == "image"
    assert study.dataset_patients("digits") is None


# Names


@pytest.mark.parametrize(
    ("options", "key", "unit"),
    [
        ({"source": "imagefolder", "path": "x"}, "source: imagefolder", None),
        ({"source": "parquet", "train": "x.parquet"}, "unit_column: null", "unit: image"),
        ({"unit_column": None}, "unit_column: null", "unit: image"),
        ({"layout": {"source": "imagefolder", "path": "x"}}, "layout.source: imagefolder", None),
    ],
)
def test_patients_of_a_catalog_entry_are_only_lost_by_unit_image(
    options: dict[str, Any], key: str, unit: str | None
) -> None:
    entry = "chest_xray_patients" if "layout" in options else "chexpert"
    dataset = {"catalog": entry, **options}
    if "source" not in options and entry == "chexpert":
        dataset["root"] = "x"
    remedy = unit or "privacy: {unit: image}"
    match = f"^config: datasets.a.{key}: names no patients, but .*{entry} .*write `{remedy}`"
    with pytest.raises(ConfigError, match=match):
        study_of(datasets={"a": dataset})
    assert study_of(datasets={"a": dataset}, privacy={"unit": "image"}).dataset_unit("a") == "image"
    if unit is not None:
        assert study_of(datasets={"a": dataset | {"unit": "image"}}).dataset_unit("a") == "image"
        named = {"a": dataset | {"unit_column": "who"}}
        assert study_of(datasets=named).dataset_unit("a") == "patient"
    private = study_of(public_datasets={"a": dataset})
    assert "a" in private.public_datasets, "no unit of a public dataset is protected"


def test_published_names_are_the_catalog_s_unless_a_paper_s_name_is_written() -> None:
    part = CIFAR | {"subsample": {"per_class": 5}}
    study = study_of(
        datasets={"mine": CIFAR, "few": part, "named": CIFAR, "own": DIGITS},
        papers={"datasets": {"named": "cifar100"}},
    )
    own = unpublished_name("own")
    assert " " in own, "no paper's dataset has a space in its name"
    assert published_names(study) == {
        "mine": "cifar10",
        "few": unpublished_name("few"),  # a part has no published result
        "named": "cifar100",
        "own": own,
    }
    assert part_names(study) == {
        "mine": "cifar10",
        "few": "cifar10",
        "named": "cifar100",
        "own": own,
    }
    assert paper_names(study) == {"cifar10", "cifar100", own, unpublished_name("few")}


def test_a_part_finds_the_first_dataset_that_is_whole_and_else_equal() -> None:
    other_split = DIGITS | {"split_seed": 3}
    study = study_of(
        datasets={
            "part": PART,
            "part_of_other": PART | {"split_seed": 3},
            "alone": PART | {"split_seed": 9},
            "first": DIGITS,
            "again": DIGITS,
            "other": other_split,
        }
    )
    assert whole_datasets(study) == {"part": "first", "part_of_other": "other"}
    public = study_of(
        datasets={"mine": CIFAR},
        public_datasets={"whole": DIGITS, "part": PART},
    )
    assert whole_datasets(public) == {"part": "whole"}
    assert list(public.all_datasets()) == ["mine", "whole", "part"]


def test_backbones_that_read_text_are_also_the_few_shot_ones_unless_others_are_named() -> None:
    backbones = {"pixels": {"family": "pixels"}, "clip": CLIP}
    assert study_of(backbones=backbones).text_backbones() == ("clip",)
    assert study_of(backbones=backbones).few_shot_backbones() == ()
    assert study_of(backbones=backbones, few_shot={}).few_shot_backbones() == ("clip",)
    named = study_of(backbones=backbones, few_shot={"backbones": ["pixels"]})
    assert named.few_shot_backbones() == ("pixels",)


# Releases


def test_a_release_has_its_own_delta_or_its_dataset_s() -> None:
    study = study_of(
        datasets={"digits": DIGITS | {"delta": 1e-4}},
        methods={"sgd": EXACT},
        releases={"one": RELEASE, "two": RELEASE | {"delta": 1e-7, "predecessor": "one"}},
    )
    assert (release_delta(study, "one"), release_delta(study, "two")) == (1e-4, 1e-7)


@pytest.mark.parametrize("limit", [{}, {"max_epsilon": 4}, {"max_risk": {"advantage": 0.9}}])
@pytest.mark.parametrize("own", [None, 1e-7, 2e-3])
@pytest.mark.parametrize("of_dataset", [1e-7, 2e-3])
def test_no_delta_of_a_release_or_its_limit_is_above_one_over_n(
    limit: dict[str, Any], own: float | None, of_dataset: float
) -> None:
    study = study_of(
        datasets={"digits": DIGITS | {"delta": of_dataset, "allow_delta_above_one_over_n": True}},
        methods={"sgd": EXACT},
        releases={"one": RELEASE | {"delta": own}},
        privacy=limit,
    )
    fault = release_delta_fault(study, "one", 1000)
    used = of_dataset if own is None else own
    if used > 1 / 1000:
        assert fault is not None
        assert "0.002" in fault
        assert not fault.startswith("privacy."), "the release's own delta is at fault"
    elif limit and of_dataset > 1 / 1000:
        (name,) = limit
        assert fault is not None
        assert fault.startswith(f"privacy.{name} of digits uses the dataset")
    else:
        assert fault is None
    assert release_delta_fault(study, "one", 400) is None  # 1 / 400 is larger than both deltas


@pytest.mark.parametrize("asked", [{}, {"evaluate": {"epsilon": 1}}])
def test_a_release_states_the_parts_that_it_asks_for_alone(asked: dict[str, Any]) -> None:
    """So a part that a later version adds does not change the hashes of older releases."""
    release = study_of(releases={"one": RELEASE | asked}).releases["one"]
    keys = {part.key for part in load_parts().values()}
    assert keys & release.model_dump(mode="json").keys() == asked.keys()
