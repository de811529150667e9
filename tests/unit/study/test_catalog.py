"""The catalog has valid files, completes options by name, and turns each entry into tables."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from dpprobe import project_files
from dpprobe.data import dataset_preparation
from dpprobe.data.options import DatasetOptions
from dpprobe.data.people.group_columns import group_column
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.study import catalog
from dpprobe.study.study_file import load_study
from tests.support import misbehaving_server
from tests.support.catalog_fixtures import BUILDERS, EYES, RADIOGRAPHS, Place, is_tested
from tests.support.hub_server import serve
from tests.support.misbehaving_server import make_quick

NAMES = catalog.dataset_names()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder = tmp_path / "own"
    folder.mkdir()
    make_quick(monkeypatch, attempts=2)
    with serve({}) as hub, misbehaving_server.serve() as web:
        yield Place(folder=folder, web=web, hub=hub, patch=monkeypatch)


def options_of(name: str, **values: Any) -> DatasetOptions:
    return dataset_options(catalog.complete_dataset({"catalog": name, **values}))


def required_of(name: str) -> dict[str, Any]:
    return dict.fromkeys(catalog.dataset_entry(name).required, "somewhere")


# The files


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_makes_a_study(name: str) -> None:
    """The study names the entry in YAML, and adds only what the entry cannot know."""
    study = {
        "datasets": {name: {"catalog": name, **required_of(name)}},
        "backbones": {"pixels": {"family": "pixels"}},
        "methods": {"ceiling": {"head": "nonprivate"}},
        "epsilons": ["inf"],
    }
    dataset = load_study(yaml.safe_load(yaml.safe_dump(study))).datasets[name]
    entry = catalog.dataset_entry(name)
    assert dataset.source == entry.options["source"]
    assert dataset.expect.model_dump() == entry.sizes.model_dump()
    assert dataset.metric == entry.metric
    assert dataset.multi_label() == entry.multi_label
    # A rule's params contain the completed options; reading them again changes nothing.
    assert dataset_options(dataset.model_dump(mode="json")) == dataset
    if not entry.required:
        rows = (entry.sizes.train, entry.sizes.test)
        assert dataset.count_rows() == (None if None in rows else rows)
        assert dataset.count_classes() == entry.sizes.classes


def test_class_names_are_torchvisions() -> None:
    """Names equal torchvision's; for Places365 the checksum of torchvision's list."""
    from torchvision.datasets import MNIST, FashionMNIST, Places365

    for name, cls in (("mnist", MNIST), ("fashion_mnist", FashionMNIST)):
        assert catalog.dataset_entry(name).class_names == tuple(cls.classes)
    places = catalog.dataset_entry("places365").class_names or ()
    text = "\n".join(f"{name} {number}" for number, name in enumerate(places))
    assert hashlib.md5(text.encode()).hexdigest() == Places365._CATEGORIES_META[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_catalog_entry_is_consistent_and_allows_no_unknown_keys(name: str) -> None:
    entry = catalog.dataset_entry(name)
    assert entry.steps or (entry.access == "open" and not entry.required)
    assert entry.required or entry.access != "credentialed"
    if entry.class_names is not None:
        assert len(entry.class_names) == entry.sizes.classes
        assert entry.prompt_names == "imagenet" or set(entry.prompt_names) <= set(entry.class_names)
    values = project_files.read_yaml("catalog", f"{name}.yaml")
    with pytest.raises(ValidationError):
        catalog.DatasetEntry.model_validate(values | {"colour": "grey"})


# Each entry is prepared with its own source


def prepare(options: DatasetOptions, folder: Path, tables: Path) -> None:
    options.check_files()
    if options.download_params() is None:
        dataset_preparation.prepare_dataset(options, tables)
        return
    dataset_preparation.download_dataset(options, folder)
    dataset_preparation.prepare_dataset(options, tables, downloaded=folder)


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_becomes_split_tables(name: str, place: Place, tmp_path: Path) -> None:
    entry = catalog.dataset_entry(name)
    small = BUILDERS[name](entry, place)
    sizes = {"train": small.train, "test": small.test, "classes": small.classes}
    options = options_of(name, **small.values, expect=sizes)
    prepare(options, tmp_path / "downloads", tmp_path / "tables")
    info = read_info(tmp_path / "tables/dataset.json")
    assert (info.train_rows, info.test_rows) == (small.train, small.test)
    assert len(info.class_names) == small.classes
    assert info.multi_label == entry.multi_label
    assert info.groups == tuple(group_column(group) for group in entry.groups)
    if entry.class_names is not None:
        assert info.class_names == entry.class_names
    written = json.loads((tmp_path / "tables/dataset.json").read_text())
    assert written["catalog"] == name
    assert written["source"]["source"] == entry.options["source"]
    assert written["revision"] == entry.options.get("revision")
    # Every row has a different image.
    seen = [
        image.sha256
        for split in ("train", "test")
        for image in SplitTable(tmp_path / f"tables/{split}.parquet").read_images(0, 10_000)
    ]
    assert len(set(seen)) == small.train + small.test

    if entry.sizes.train is None:
        return
    # Compared with the real dataset's sizes, the small one is refused, with both numbers.
    whole = options_of(name, **small.values)
    with pytest.raises(DataError) as caught:
        prepare(whole, tmp_path / "downloads", tmp_path / "whole")
    assert str(entry.sizes.train) in str(caught.value)
    assert str(small.train) in str(caught.value)
    assert not (tmp_path / "whole/dataset.json").exists()


def test_chest_findings_follow_the_entrys_policy(place: Place, tmp_path: Path) -> None:
    """-1 counts as a finding for Atelectasis but not for Cardiomegaly; a blank is no finding."""
    entry = catalog.dataset_entry("chexpert")
    small = BUILDERS["chexpert"](entry, place)
    options = options_of("chexpert", **small.values, expect={})
    dataset_preparation.prepare_dataset(options, tmp_path)
    table = SplitTable(tmp_path / "train.parquet")
    labels = {name: table.read_labels()[:, k].tolist() for k, name in enumerate(table.class_names)}
    # Row r of the fixture has (1, 0, -1, blank)[(r + place) % 4]; Atelectasis has place 8.
    assert labels["Atelectasis"] == [1, 0, 1, 0] * 2
    assert labels["Cardiomegaly"] == [0, 0, 1, 0] * 2
    groups = table.read_groups()
    assert groups["group_age"][:4] == ["<20", "20-39", "40-59", "60-79"]
    assert groups["group_race"][:3] == ["Asian", "", "White"]


def test_mimics_tables_are_joined(place: Place, tmp_path: Path) -> None:
    entry = catalog.dataset_entry("mimic_cxr")
    small = BUILDERS["mimic_cxr"](entry, place)
    dataset_preparation.prepare_dataset(
        options_of("mimic_cxr", **small.values, expect={}), tmp_path
    )
    table = SplitTable(tmp_path / "train.parquet")
    groups = table.read_groups()
    # Row r has r % 3 admissions, of which the first is Medicaid; row 3 has no labels.
    assert groups["group_insurance"] == ["", "Medicaid", "Medicaid"] * 2 + ["", "Medicaid"]
    assert groups["group_sex"][:2] == ["M", "F"]
    assert table.read_labels()[3].tolist() == [0] * 5
    assert table.read_ids()[0] == "02aa804e-00000000"


def test_radiographs_stay_with_their_patients(place: Place, tmp_path: Path) -> None:
    """Patients, kinds and split come from file names, not from the authors' split."""
    small = BUILDERS["chest_xray_patients"](catalog.dataset_entry("chest_xray_patients"), place)
    options = options_of("chest_xray_patients", **small.values)
    assert options.named_people().column
    prepare(options, tmp_path / "downloads", tmp_path)
    found = {}
    for split in ("train", "test"):
        table = SplitTable(tmp_path / f"{split}.parquet")
        kinds, units = table.read_groups()["group_kind"], table.read_units() or []
        for row, image in enumerate(table.read_ids()):
            label = table.class_names[table.read_labels()[row]].upper()
            found[label, image.rpartition("/")[2]] = (units[row], kinds[row], split)
    assert found == {
        (label, name): (
            patient,
            next((kind for kind in ("bacteria", "virus") if kind in name), ""),
            "test" if is_tested(patient) else "train",
        )
        for label, name, patient in RADIOGRAPHS
    }


def read_eyes(table: SplitTable) -> list[tuple[str, str, int]]:
    """Returns id, patient and grade of each retina, in table order."""
    labels = table.read_labels().tolist()
    return list(zip(table.read_ids(), table.read_units() or [], labels, strict=True))


def test_both_eyes_of_a_patient_are_one_unit(place: Place, tmp_path: Path) -> None:
    """Patients come from image names; each part's images are in its own folder."""
    small = BUILDERS["eyepacs"](catalog.dataset_entry("eyepacs"), place)
    options = options_of("eyepacs", **small.values, expect={})
    assert options.count_units() == len(EYES["train"])
    prepare(options, tmp_path / "downloads", tmp_path)
    for split, patients in EYES.items():
        table = SplitTable(tmp_path / f"{split}.parquet")
        assert read_eyes(table) == [
            (f"{patient}_{eye}", str(patient), grade)
            for patient, grades in patients.items()
            for eye, grade in zip(("left", "right"), grades, strict=True)
        ]
        files = [Path(str(image["path"])) for image in table_images(tmp_path / f"{split}.parquet")]
        assert {file.parent.name for file in files} == {split}


def table_images(path: Path) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = pq.read_table(path)["image"].to_pylist()
    return images


def test_without_labels_of_test_images_patients_of_retinas_are_held_out(
    place: Place, tmp_path: Path
) -> None:
    small = BUILDERS["eyepacs"](catalog.dataset_entry("eyepacs"), place)
    (place.folder / "retinopathy_solution.csv").unlink()
    split = {"test": None, "test_fraction": 0.4, "split_by": "id", "missing_classes": "warn"}
    options = options_of("eyepacs", **small.values, **split)
    assert options.expect.train is None
    prepare(options, tmp_path / "downloads", tmp_path)
    parts = {
        name: {patient for _, patient, _ in read_eyes(SplitTable(tmp_path / f"{name}.parquet"))}
        for name in ("train", "test")
    }
    assert parts["train"] | parts["test"] == {str(patient) for patient in EYES["train"]}
    assert not parts["train"] & parts["test"]


@pytest.mark.parametrize("missing", ["trainLabels.csv", "retinopathy_solution.csv"])
def test_missing_labels_of_retinas_are_named_before_any_image_is_read(
    missing: str, place: Place
) -> None:
    small = BUILDERS["eyepacs"](catalog.dataset_entry("eyepacs"), place)
    (place.folder / missing).unlink()
    with pytest.raises(ConfigError, match=re.escape(missing)):
        options_of("eyepacs", **small.values).check_files()


@pytest.mark.parametrize("name", ["imagenet", "plantdisease"])
def test_an_entry_s_own_rows(name: str, place: Place, tmp_path: Path) -> None:
    small = BUILDERS[name](catalog.dataset_entry(name), place)
    prepare(options_of(name, **small.values, expect={}), tmp_path / "downloads", tmp_path)
    if name == "imagenet":
        # The files have images 4, 1, 6 and 2, 5, 3; image 2 has no accepted label.
        accepted = SplitTable(tmp_path / "test.parquet").read_accepted()
        assert accepted == [[1], [1], [0], [], [2], [0]]
    else:
        names = read_info(tmp_path / "dataset.json").class_names
        assert "Background_without_leaves" not in names


# A study that names an entry gets the entry's options


CHEXPERT = {"catalog": "chexpert", "root": "x"}


def test_what_a_study_writes_comes_before_the_entry() -> None:
    entry = catalog.dataset_entry("eurosat")
    plain = catalog.complete_dataset({"catalog": "eurosat"})
    assert plain.pop("catalog") == "eurosat"
    assert plain.pop("expect") == entry.sizes.model_dump()
    assert plain == {
        **entry.options,
        "metric": entry.metric,
        "prompts": entry.prompts,
        "prompt_names": entry.prompt_names,
    }
    own = {"catalog": "eurosat", "split_seed": 3, "metric": "auc", "prompts": "simple"}
    made = catalog.complete_dataset(own)
    assert {key: made[key] for key in own} == own
    assert made["expect"] == entry.sizes.model_dump(), "another seed leaves as many images"
    # also if the entry has another value
    assert catalog.dataset_entry("chexpert").options["missing"] == "zeros"
    assert catalog.complete_dataset(CHEXPERT | {"missing": "drop"})["missing"] == "drop"


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ({}, True),
        ({"limit": {"train": 9}}, True),  # a user who sets a limit knows the number of rows
        ({"uncertain": "zeros"}, True),
        ({"test": "CheXpert-v1.0-small/valid.csv"}, True),  # same as in the entry
        ({"test": None}, False),
        ({"test": None, "split_column": "split", "test_values": ["validate"]}, False),
        ({"train": "other.csv"}, False),
        ({"filters": {"Sex": ["Male"]}}, False),
        ({"split_by": "id"}, False),
        ({"test_fraction": 0.5}, False),
        ({"missing": "drop"}, False),
        ({"uncertain": "drop"}, False),
        ({"uncertain": {"Edema": "zeros", "Cardiomegaly": "drop"}}, False),
        # a copy on disk: its file names do not change the number of rows
        ({"source": "imagefolder", "path": "x"}, True),
        ({"source": "parquet", "train": "a", "test": "b"}, True),
        ({"source": "parquet", "train": "a", "test": "b", "filters": {"a": 1}}, False),
    ],
)
def test_sizes_are_held_against_rows_unless_options_choose_among_them(
    written: dict[str, Any], known: bool
) -> None:
    sizes = catalog.dataset_entry("chexpert").sizes.model_dump()
    expected = sizes if known else {"classes": sizes["classes"]}
    assert catalog.complete_dataset(CHEXPERT | written)["expect"] == expected


def test_a_copy_from_another_source_keeps_no_option_of_the_entry_s_source() -> None:
    """The copy's classes may have other names, so the entry's names for prompts do not apply."""
    written = {"catalog": "chexpert", "source": "imagefolder", "path": "x"}
    made = catalog.complete_dataset(written)
    entry = catalog.dataset_entry("chexpert")
    assert made == {
        **written,
        "expect": entry.sizes.model_dump(),
        "metric": "auc",
        "prompts": entry.prompts,
        # the authors' files contain repeated images, and so does every copy
        "duplicates": entry.options["duplicates"],
    }


@pytest.mark.parametrize("name", [each for each in NAMES if catalog.dataset_entry(each).required])
def test_missing_required_options_are_requested_with_the_catalog_steps(name: str) -> None:
    entry = catalog.dataset_entry(name)
    with pytest.raises(ConfigError) as refused:
        catalog.complete_dataset({"catalog": name})
    said = str(refused.value)
    assert said.startswith(f"{', '.join(entry.required)}: missing; ")
    assert entry.title in said
    assert said.endswith(" ".join(str(entry.steps).split()))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("cifar_10", "choose cifar10 or cifar100"),
        ("???", f"choose one of: {', '.join(NAMES)}"),
        (5, f"choose one of: {', '.join(NAMES)}"),
    ],
)
def test_an_unknown_name_is_answered_with_names_that_are_known(name: Any, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        catalog.complete_dataset({"catalog": name})
    assert str(refused.value) == f"catalog: no dataset {name!r}; {remedy}"


ENTRY: dict[str, Any] = {
    "dimension": 64,
    "options": {
        "family": "timm",
        "model": "m",
        "pretrained": "tag",
        "model_args": {"depth": 2, "side": 8},
        "preprocessing": {"size": 64, "crop": "centre"},
    },
}


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ({}, {}),
        ({"dimension": 65}, {"dimension": 65}),
        ({"model_args": {"side": 9}}, {"model_args": {"depth": 2, "side": 9}}),
        ({"preprocessing": {"crop": "none"}}, {"preprocessing": {"size": 64, "crop": "none"}}),
        ({"preprocessing": None}, {"preprocessing": None}),
        ({"checkpoint": "w.pt"}, {"checkpoint": "w.pt", "pretrained": ...}),  # new weights
        ({"checkpoint": None}, {"checkpoint": None}),
        ({"pretrained": False}, {"pretrained": False}),
    ],
)
def test_a_backbone_s_options_are_merged_key_by_key(
    monkeypatch: pytest.MonkeyPatch, written: dict[str, Any], changed: dict[str, Any]
) -> None:
    monkeypatch.setattr(catalog, "backbone_entries", lambda: {"vit_b16": ENTRY})
    before = json.dumps(ENTRY)
    whole = {"catalog": "vit_b16", "dimension": 64, **ENTRY["options"], **changed}
    expected = {key: value for key, value in whole.items() if value is not ...}
    assert catalog.complete_backbone({"catalog": "vit_b16"} | written) == expected
    assert json.dumps(ENTRY) == before


# Class names for prompts
