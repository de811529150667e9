"""What identifies a release, what it books and what sites agree on, where one thing differs."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dpprobe.errors import PrivacyError, WaitingError
from dpprobe.release.asked_release import hash_data, hash_options
from dpprobe.release.bundle import bundle_digest
from dpprobe.release.make import ReleaseTask
from dpprobe.release.parts.cohort.measure import Steps as CohortSteps
from dpprobe.release.parts.sites import SitesOptions, several_sites
from dpprobe.release.release_folders import ReleaseFolders
from tests.support.feature_stores import separable, write_split
from tests.support.release_study import study
from tests.support.stored_records import answer_of, check_values

MEMBERS = {"a": "0" * 64, "b": "1" * 64, "c": "2" * 64}
MEASURED = {"evaluate": {"epsilon": 1}, "calibrate": {"epsilon": 1}, "monitor": {"epsilon": 2}}
# Options of the release and its dataset, options of the study, facts of features, and of sites.
RELEASES: dict[str, dict[str, Any]] = {
    "the same": {},
    "epsilon": {"epsilon": 1},
    "risk": {"epsilon": {"advantage": 0.3}},
    "delta": {"delta": 1e-5},
    "sums": {"method": "sums"},
    "search": {"method": "search"},
    "auto": {"method": "auto"},
    "balanced": {"method": "balanced"},
    "evaluate": {"evaluate": {"epsilon": 1}},
    "metric": {"evaluate": {"epsilon": 1, "metric": "accuracy"}},
    "other metric": {"evaluate": {"epsilon": 1, "metric": "macro_accuracy"}},
    "monitor": {"monitor": {"epsilon": 2}},
    "everything": MEASURED,
    "cohort": {"cohort": "now"},
    "horizon": {"cohort": "now", "horizon": 4},
    "predecessor": {"predecessor": "x"},
    "cohort after": {"cohort": "now", "predecessor": "x"},
    "card": {"card": {"contact": "me"}},
    "sign_key": {"sign_key": "key.pem"},
    "allow_useless": {"allow_useless": True},
    "max_epsilon": {"max_epsilon": 9},
    "split_seed": {"more": {"split_seed": 5}},
    "subsample": {"more": {"subsample": {"fraction": 0.5}}},
    "same_units_as": {"more": {"same_units_as": "other"}},
    "patients": {"of_patients": True},
    "another column": {"of_patients": True, "more": {"unit_column": "case"}},
    "images of patients": {"of_patients": True, "more": {"unit": "image"}},
    "images per patient": {
        "of_patients": True,
        "more": {"unit": "image", "max_images_per_patient": 2},
    },
}
STUDIES = {"accountant": "rdp", "device": "cuda", "delta": 1e-6, "seeds": 2, "study": "other"}
FEATURES: dict[str, dict[str, Any]] = {
    "class_names": {"class_names": ("a", "c", "b")},
    "dataset_fingerprint": {"dataset_fingerprint": "x"},
    "backbone_options": {"backbone_options": {"size": 3}},
    "preprocessing": {"preprocessing": {"color": "rgb"}},
    "weights": {"weights_sha256": "0" * 64},
    "rows": {"rows": 299},
    "dimension": {"dimension": 7},
    "values": {"seed": 9},
}
SITES: dict[str, dict[str, Any]] = {
    "members": {"members": MEMBERS | {"c": "3" * 64}},
    "colluders": {"colluders": 2},
    "aggregator": {"aggregator": "b"},
    "exchange": {"exchange": "f"},
    "name": {"name": "b"},
}


def write_features(folder: Path, **changes: Any) -> None:
    """Writes both splits; `changes` are of the training examples alone."""
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
    """All values by which releases are told apart, by name."""
    values = {"name": "a", "members": MEMBERS, "key": "k", "exchange": "e", **sites}
    agreed = several_sites._list_terms(task, SitesOptions.model_validate(values))
    binds = CohortSteps(task)._list_binds()
    booking = task.make_booking().to_dict()
    del booking["identity"], booking["study"]
    return {
        "options": hash_options(task, task.options),
        "data": hash_data(task),
        "patients": task.plan.patients and task.plan.patients.images,
        **{f"bind: {name}": value for name, value in binds.items()},
        **{f"term: {name}": value for name, value in agreed.items()},
        **{f"booking: {name}": value for name, value in booking.items()},
    }


def test_each_change_changes_what_it_should(tmp_path: Path) -> None:
    write_features(tmp_path)
    made, found, bookings = study(tmp_path), {}, {}
    plain = identify(make_task(tmp_path, tmp_path, made))

    def compare(case: str, task: ReleaseTask, **sites: Any) -> None:
        values = answer_of(identify, task, **sites)
        found[case] = (
            values
            if not isinstance(values, dict)
            else [key for key in {**plain, **values} if values.get(key) != plain.get(key)]
        )

    for name, options in RELEASES.items():
        task = make_task(tmp_path, tmp_path, **options)
        compare(name, task)
        bookings[name] = answer_of(lambda task=task: replace(task.make_booking(), identity=""))
    for key, value in STUDIES.items():
        compare(f"study {key}", make_task(tmp_path, tmp_path, made.model_copy(update={key: value})))
    for name, changes in FEATURES.items():
        write_features(tmp_path / name, **changes)
        compare(f"features {name}", make_task(tmp_path, tmp_path / name, made))
    for name, sites in SITES.items():
        compare(f"sites {name}", make_task(tmp_path, tmp_path, made), **sites)
    check_values("identities_of_releases", found)
    check_values("bookings_of_releases", bookings, rel=1e-4)


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
        facts = answer_of(lambda name=name: make_task(tmp_path, tmp_path / name, made).backbone)
        assert ("delete the file and run again" in str(facts)) == fault
        assert fault or (facts.checkpoint, facts.precision) == ("w.pt", "float32")
    task = make_task(tmp_path, tmp_path / "a", made)
    agreed = dict.fromkeys(("inputs", "facts", "method", "plan", "plans", "test_price"), 1)
    vars(task).update(agreed | {"delta": 2})
    task.forget_agreed()
    assert vars(task).keys() & {*agreed, "delta"} == {"delta"}
    names: Any = task.list_units().names
    assert [*names["train"][:2], *names["test"][:3]] == [
        "train-0",
        "train-1",
        "test 0",
        "test 0",
        "test 1",
    ]


def test_facts_are_of_each_backbone_with_features(tmp_path: Path) -> None:
    for backbone, dimension in (("pixels", 6), ("other", 9)):
        write_features(tmp_path / "features/toy" / backbone, dimension=dimension)
    made = study(tmp_path)
    backbones = dict.fromkeys(("other", "absent", "pixels"), made.backbones["pixels"])
    known = make_task(
        tmp_path, tmp_path / "features/toy/pixels", made.model_copy(update={"backbones": backbones})
    ).list_facts()
    assert {name: facts.dimension for name, facts in known.items()} == {"pixels": 6, "other": 9}
    assert {(facts.n, facts.epsilon) for facts in known.values()} == {(300, 2.0)}


@pytest.mark.parametrize("unlisted", [None, "b", "z"])
def test_a_bundle_that_no_entry_lists_is_found_among_others(
    tmp_path: Path, unlisted: str | None
) -> None:
    """Beside bundles of other data, and folders that are none."""
    known = []
    for name, facts in {
        "a": "[]",
        "c": "{",
        "d": None,
        "e": '{"dataset": "other"}',
        "f": '{"dataset": "toy"}',
        "b": '{"dataset": "toy"}',
        "z": '{"dataset": "toy"}',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SHA256SUMS").write_text(name)
        if facts is not None:
            (tmp_path / name / "bundle.json").write_text(facts)
        if name != unlisted:
            known.append(SimpleNamespace(digest=bundle_digest(tmp_path / name)))
    folders = ReleaseFolders("first", tmp_path / "first", tmp_path / "ledger.jsonl")
    said = str(answer_of(folders.check_listed, "toy", [SimpleNamespace(digest=None), *known]))
    assert ("restore the ledger" in said) == (unlisted is not None)
    assert said.startswith(str(tmp_path / unlisted)) if unlisted else said == "None"


def test_the_file_that_marks_a_bundle_is_copied_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may end anywhere, and a folder with this file counts as whole."""
    (tmp_path / "staged").mkdir()
    for name in ("heads.safetensors", "SHA256SUMS", "A", "statement.json"):
        (tmp_path / "staged" / name).write_text(name)
    copy = Mock(side_effect=shutil.copyfile)
    monkeypatch.setattr("dpprobe.release.release_folders.shutil.copyfile", copy)
    folders = ReleaseFolders("first", tmp_path / "first", tmp_path / "ledger.jsonl")
    folders.publish(tmp_path / "staged")
    assert copy.call_count == 4
    assert copy.call_args.args[0].name == "SHA256SUMS"


@pytest.mark.parametrize(
    ("entries", "minutes", "error", "tries"),
    [
        ([None, None, 1, 1], 1, None, 4),
        ([1, 1, 1], 1, None, 3),
        ([1, None], 1, PrivacyError, 1),
        ([1, 2], 1, PrivacyError, 1),
        ([None, 1, None], 1, PrivacyError, 2),
        ([None, 1, 2], 1, PrivacyError, 2),
        ([None] * 99, 0, WaitingError, 1),
        ([1] * 99, 0.1, WaitingError, 4),
        ([1] * 99, None, WaitingError, 31),
    ],
)
def test_a_run_waits_as_long_as_is_said_and_ends_where_its_entry_is_abandoned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[int | None],
    minutes: float | None,
    error: type[Exception] | None,
    tries: int,
) -> None:
    transport, numbers = object.__new__(several_sites.SeveralSites), iter(entries)
    tried: list[int] = []
    forgotten: list[int] = []
    vars(transport).update(
        task=SimpleNamespace(name="first", forget_agreed=lambda: forgotten.append(1)),
        private=tmp_path / "private",
        folder=tmp_path / "none",
        agreement=1,
        exchange=2,
        options=SimpleNamespace(wait_minutes=1),
        _read_entry=lambda: (number := next(numbers)) and SimpleNamespace(number=number),
    )
    clock = SimpleNamespace(monotonic=lambda: 2.0 * max(0, len(tried) - 1), sleep=lambda _: None)
    monkeypatch.setattr(several_sites, "time", clock)

    def work() -> None:
        tried.append(1)
        if len(tried) < len(entries):
            raise WaitingError("not yet")

    with pytest.raises(error) if error else nullcontext():
        transport.run(work, minutes)
    assert len(tried) == tries
    assert len(forgotten) == tries - (error is not PrivacyError)
    assert bool({"agreement", "exchange"} & vars(transport).keys()) == (not forgotten)
