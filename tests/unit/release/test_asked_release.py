"""A release's identity, booking and agreement of sites, after a single change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from dpprobe.data.registry import dataset_options
from dpprobe.errors import DataError
from dpprobe.release.asked_release import hash_data, hash_options, list_units
from dpprobe.release.described_backbone import describe_backbone
from dpprobe.release.make import ReleaseTask
from dpprobe.release.parts.cohort.measure import Steps as CohortSteps
from dpprobe.release.parts.sites import SitesOptions
from dpprobe.release.parts.sites.several_sites import list_terms
from dpprobe.study.study_file import load_study
from tests.support.feature_stores import separable, write_split
from tests.support.refusals import refuses
from tests.support.release_study import study

MEMBERS = {"a": "0" * 64, "b": "1" * 64, "c": "2" * 64}
MEASURED = {"evaluate": {"epsilon": 1}, "calibrate": {"epsilon": 1}, "monitor": {"epsilon": 2}}
# A change of epsilon or delta changes the options' hash, the chain's binding and the booking.
PRICE = {"options", "bind: epsilon or delta", "booking: parts"}
METHOD = PRICE | {"bind: method", "term: method"}
UNIT = {"options", "bind: unit of privacy", "booking: split"}
COLUMN = UNIT | {"term: unit_column"}
PATIENT = COLUMN | {"term: unit of privacy", "booking: unit", "booking: column"}
# Options of the release and its dataset, with all values that must then differ. Heads ignore card,
# key and limits; chains of cohorts bind what their sums need; sites agree on all options.
RELEASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "the same": ({}, set()),
    "epsilon": ({"epsilon": 1}, PRICE | {"term: epsilon"}),
    "risk": ({"epsilon": {"advantage": 0.3}}, PRICE | {"term: epsilon"}),
    "delta": ({"delta": 1e-5}, PRICE | {"term: delta"}),
    **{name: ({"method": name}, METHOD) for name in ("sums", "search", "auto", "balanced")},
    "evaluate": ({"evaluate": {"epsilon": 1}}, {"options", "term: evaluate", "booking: parts"}),
    "monitor": ({"monitor": {"epsilon": 2}}, {"options", "term: monitor", "booking: parts"}),
    "everything": (
        MEASURED,
        {"options", "term: evaluate", "term: calibrate", "term: monitor", "booking: parts"},
    ),
    "cohort": ({"cohort": "now"}, {"options", "term: cohort"}),
    "horizon": (
        {"cohort": "now", "horizon": 4},
        {"options", "term: cohort", "term: horizon", "booking: place"},
    ),
    **{
        name: ({name: value}, set())
        for name, value in {
            "predecessor": "x",
            "card": {"contact": "me"},
            "sign_key": "key.pem",
            "allow_useless": True,
            "max_epsilon": 9,
        }.items()
    },
    "split_seed": ({"more": {"split_seed": 5}}, {"options", "term: split rule", "booking: split"}),
    "subsample": ({"more": {"subsample": {"fraction": 0.5}}}, {"term: subsample"}),
    "same_units_as": ({"more": {"same_units_as": "other"}}, {"booking: same_units_as"}),
    "patients": ({"of_patients": True}, PATIENT),
    "images of patients": (
        {"of_patients": True, "more": {"unit": "image"}},
        COLUMN | {"term: images per patient"},
    ),
    "images per patient": (
        {"of_patients": True, "more": {"unit": "image", "max_images_per_patient": 2}},
        COLUMN | {"term: images per patient", "patients"},
    ),
    **{
        name: ({"of_patients": True, "more": {name: value}}, PATIENT | {f"term: {name}"})
        for name, value in {"filters": {"kind": ["a", "b"]}, "missing": "drop"}.items()
    },
}
# The head ignores a study's name, seeds and device, and which site packs the bundle.
STUDIES: dict[str, tuple[Any, set[str]]] = {
    "accountant": ("rdp", PRICE | {"term: accountant"}),
    "delta": (1e-6, PRICE | {"term: delta"}),
    "device": ("cuda", set()),
    "seeds": (2, set()),
    "study": ("other", set()),
}
BACKBONE = {"bind: backbone", "term: backbone"}
FEATURES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "class_names": (
        {"class_names": ("a", "c", "b")},
        {"data", "bind: class list", "term: class list"},
    ),
    "dataset_fingerprint": ({"dataset_fingerprint": "x"}, {"data", "booking: split"}),
    "backbone_options": ({"backbone_options": {"size": 3}}, BACKBONE),
    "preprocessing": ({"preprocessing": {"color": "rgb"}}, {"data", *BACKBONE}),
    "weights": ({"weights_sha256": "0" * 64}, {"data", *BACKBONE}),
    "rows": ({"rows": 299}, {"data"}),
    "dimension": ({"dimension": 7}, {"data", "term: dimension"}),
    "values": ({"seed": 9}, {"data"}),
}
SITES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "members": ({"members": MEMBERS | {"c": "3" * 64}}, {"term: members"}),
    "colluders": ({"colluders": 2}, {"term: colluders"}),
    "aggregator": ({"aggregator": "b"}, {"term: aggregator"}),
    "exchange": ({"exchange": "f"}, set()),
    "name": ({"name": "b"}, set()),
}


def write_features(folder: Path, **changes: Any) -> None:
    """Writes both splits; `changes` apply only to training examples."""
    for split, rows in (("train", 300), ("test", 600)):
        given = {"rows": rows, "dimension": 6, "seed": 1, **(changes if split == "train" else {})}
        number, dimension, seed = (given.pop(name) for name in ("rows", "dimension", "seed"))
        labels = np.arange(number) % 3
        write_split(
            folder / split,
            separable(labels, dimension, seed=seed),
            labels,
            units=given.pop("units", [f"{split} {row // 2}" for row in range(number)]),
            probe=given.pop("probe", {"sha256": "0" * 64, "norm": 1.0, "sample": [0.5]}),
            **{"precision": "float32", "backbone": "pixels", **given},
        )


def make_task(folder: Path, features: Path, made: Any = None, **options: Any) -> ReleaseTask:
    return ReleaseTask(
        study=made or study(folder, **options),
        name="first",
        output=folder / "out/first",
        train=features / "train/manifest.json",
        test=features / "test/manifest.json",
        cache=folder / "calibration",
    )


def identify(task: ReleaseTask, **sites: Any) -> dict[str, Any]:
    """Returns all values that identify a release, by name."""
    values = {"name": "a", "members": MEMBERS, "key": "k", "exchange": "e", **sites}
    agreed, planned = list_terms(task, SitesOptions.model_validate(values)), task.plan_release()
    binds = CohortSteps(planned).list_binds()
    booking = planned.make_booking().to_dict()
    del booking["identity"], booking["study"]
    return {
        "options": hash_options(task, task.options),
        "data": hash_data(task.stores),
        "patients": planned.plan.patients and planned.plan.patients.images,
        **{f"bind: {name}": value for name, value in binds.items()},
        **{f"term: {name}": value for name, value in agreed.items()},
        **{f"booking: {name}": value for name, value in booking.items()},
    }


def find_changes(plain: dict[str, Any], changed: dict[str, Any]) -> set[str]:
    return {key for key in {**plain, **changed} if changed.get(key) != plain.get(key)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    write_features(folder)
    return folder


@pytest.fixture(scope="module")
def plain(place: Path) -> dict[str, Any]:
    return identify(make_task(place, place))


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_option_changes_only_the_terms_that_depend_on_it(
    place: Path, plain: dict[str, Any], name: str
) -> None:
    options, changes = RELEASES[name]
    assert find_changes(plain, identify(make_task(place, place, **options))) == changes


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_s_option_changes_what_depends_on_it(
    place: Path, plain: dict[str, Any], name: str
) -> None:
    value, changes = STUDIES[name]
    made = study(place).model_copy(update={name: value})
    assert find_changes(plain, identify(make_task(place, place, made))) == changes


@pytest.mark.parametrize("name", FEATURES)
def test_other_features_change_what_depends_on_them(
    place: Path, plain: dict[str, Any], name: str
) -> None:
    given, changes = FEATURES[name]
    write_features(place / name, **given)
    assert find_changes(plain, identify(make_task(place, place / name))) == changes


@pytest.mark.parametrize("name", SITES)
def test_only_site_options_that_affect_the_guarantee_change_the_terms(
    place: Path, plain: dict[str, Any], name: str
) -> None:
    given, changes = SITES[name]
    assert find_changes(plain, identify(make_task(place, place), **given)) == changes


def test_a_metric_is_part_of_a_release(place: Path) -> None:
    asked = [
        make_task(place, place, evaluate={"epsilon": 1, **more})
        for more in ({}, {"metric": "accuracy"}, {"metric": "macro_accuracy"})
    ]
    default, named, other = (hash_options(each, each.options) for each in asked)
    assert default == named, "the accuracy, where nothing is named"
    assert other != default


def test_only_a_chains_release_depends_on_its_predecessor(place: Path) -> None:
    """For a cohort, the predecessor determines the added sums; otherwise it is only a remark."""
    for more, same in (({}, True), ({"cohort": "now"}, False)):
        one, other = (
            make_task(place, place, **more, **each) for each in ({}, {"predecessor": "x"})
        )
        assert (hash_options(one, one.options) == hash_options(other, other.options)) == same
    with refuses(DataError, "x", "bundle"):
        identify(make_task(place, place, cohort="now", predecessor="x"))


def test_a_public_file_is_identified_only_by_its_content(place: Path, tmp_path: Path) -> None:
    """Moving the file leaves the head unchanged; rewriting it does not."""
    asked = study(place)
    hashes = []
    for name, content in (("a", b"1"), ("b", b"1"), ("a", b"2")):
        path = tmp_path / name
        path.write_bytes(content)
        start = {"init": "file", "init_file": str(path)}
        methods = {"covariance": asked.methods["covariance"].model_copy(update=start)}
        task = make_task(place, place, asked.model_copy(update={"methods": methods}))
        hashes.append(hash_options(task, task.options))
    first, moved, rewritten = hashes
    assert moved == first != rewritten


@pytest.mark.parametrize("measured", [{}, MEASURED])
def test_a_booking_has_the_plan_of_each_side_at_its_price(
    place: Path, measured: dict[str, Any]
) -> None:
    """All parts that use test units are booked as one, at the sum of their epsilons."""
    task = make_task(place, place, **measured)
    planned = task.plan_release()
    booking = planned.make_booking()
    facts = (booking.release, booking.study, booking.unit, booking.column, booking.place)
    assert facts == ("first", "unit", "image", None, None)
    assert (booking.same_units_as, booking.sites, booking.units) == (None, None, None)
    assert booking.identity == f"{hash_options(task, task.options)} {hash_data(task.stores)}"
    assert [part.side for part in booking.parts] == ["train", *(["test"] if measured else [])]
    for part in booking.parts:
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        for item in part.mechanisms:
            accountant.compose(GaussianDpEvent(item.noise_multiplier), item.count)
        assert part.epsilon == pytest.approx(accountant.get_epsilon(1e-4), rel=2e-3)
        assert part.delta == 1e-4
    assert booking.parts[0].epsilon == pytest.approx(2, rel=1e-4)
    if measured:
        names = {item.name for item in booking.parts[1].mechanisms}
        for plan in planned.plans.values():
            assert {item.name for item in plan.mechanisms} <= names
        assert len(planned.plans) == 3
        assert 2 < booking.parts[1].epsilon < 4, "less than the sum of 1, 1 and 2"


def test_a_booking_of_a_search_prices_its_best_run(place: Path) -> None:
    (part,) = make_task(place, place, method="search").plan_release().make_booking().parts
    assert part.selection
    assert part.selection.mean == 3
    assert part.epsilon <= 2


def test_a_split_by_patient_names_has_the_same_key_for_all_datasets(place: Path) -> None:
    """Equal keys mean that equal names are on equal sides, as with names in a column."""
    write_features(place / "more", dataset_fingerprint="e")
    keys = [
        make_task(place, features, **options).plan_release().make_booking().split
        for options in ({}, {"of_patients": True})
        for features in (place, place / "more")
    ]
    assert keys[0].endswith(", data d")
    assert keys[1].endswith(", data e")
    assert keys[2] == keys[3]


def test_a_task_reads_facts_units_and_agreed_values(tmp_path: Path) -> None:
    made = study(tmp_path, of_patients=True).model_copy(
        update={"backbones": {"pixels": SimpleNamespace(checkpoint="/x/w.pt")}}
    )
    for name, (given, fault) in {
        "a": ({"units": None}, False),
        "b": ({"probe": None}, True),
        "c": ({"precision": None}, True),
    }.items():
        write_features(tmp_path / name, **given)
        asked = make_task(tmp_path, tmp_path / name, made)
        if fault:
            with refuses(DataError, tmp_path / name, "delete"):
                describe_backbone(asked)
        else:
            read = describe_backbone(asked)
            assert (read.checkpoint, read.precision) == ("w.pt", "float32")
    for trained in (True, False):
        model = SimpleNamespace(checkpoint=None, model="local-dir:/x/mine")
        foldered = made.model_copy(update={"backbones": {"pixels": model}})
        write_features(tmp_path / f"trained {trained}", trained=trained, units=None)
        asked = make_task(tmp_path, tmp_path / f"trained {trained}", foldered)
        assert describe_backbone(asked).checkpoint == ("mine" if trained else None)
    # Ids of a column are names beside the patients; other ids are not.
    for rows, more in ((0, {}), (1, {"id_column": "scan"})):
        named = study(tmp_path, of_patients=True, more=more)
        task = make_task(tmp_path, tmp_path / "a", named)
        names: Any = list_units("release", tmp_path, task.dataset, task.stores).names
        assert names["train"] == [f"train-{row}" for row in range(300 * rows)]
        patients = [f"test {row // 2}" for row in range(600)]
        assert names["test"] == patients + [f"test-{row}" for row in range(600 * rows)]
        # a download has the options of its files in `layout`
        layout = {"source": "csv", "train": "a.csv", "label_column": "y", "class_names": ["k", "l"]}
        file = {"url": "https://host/a.csv", "sha256": "0" * 64}
        download = {"source": "url", "files": [file], "layout": layout | more}
        of_layout: Any = list_units("r", tmp_path, dataset_options(download), task.stores).names
        assert of_layout == names


def test_facts_are_of_each_backbone_with_features_of_the_dataset(tmp_path: Path) -> None:
    for place, dimension in {"toy/pixels": 6, "toy/other": 9, "more/pixels": 5}.items():
        write_features(tmp_path / "features" / place, dimension=dimension)
    values = study(tmp_path).model_dump(mode="json", exclude_unset=True)
    values["datasets"]["more"] = {**values["datasets"]["toy"], "same_units_as": "toy"}
    same = values["backbones"]["pixels"]
    values["backbones"] = dict.fromkeys(("other", "absent", "pixels"), same)
    task = make_task(tmp_path, tmp_path / "features/toy/pixels", load_study(values))
    for dataset, dimensions in {
        "toy": {"pixels": 6, "other": 9},
        "more": {"pixels": 5},
        "gone": {},
    }.items():
        known = task.plan_release().steps["choice"].list_facts(dataset)
        assert {name: facts.dimension for name, facts in known.items()} == dimensions
        assert all((facts.n, facts.epsilon) == (300, 2.0) for facts in known.values())
