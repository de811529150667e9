"""A comparison of two bundles is booked before noise is drawn, and never paid for twice."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dpprobe.errors import BudgetError, ConfigError, DataError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.json_files import parse_record, read_json
from dpprobe.privacy.releases import Releases
from dpprobe.release.bundle import bundle_digest, read_bundle, write_sums
from dpprobe.release.commands import open_release
from dpprobe.release.compare import ComparisonTask
from dpprobe.release.compared_heads import share_right
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_prices import compose_bookings
from dpprobe.study.study import Study
from tests.support.command_line import run_main
from tests.support.refusals import check_tokens, refuses
from tests.support.release_study import ROWS, study, write_features
from tests.support.split_tables import write_tables

N = ROWS["test"]
METHODS = {"first": "covariance", "second": "sums"}


def make_releases(folder: Path, *, images_per_patient: int | None = None, **more: Any) -> Study:
    """Makes two releases in the usual folders of a study and returns the study."""
    images = {split: [f"{split} {row}" for row in range(ROWS[split])] for split in ROWS}
    fingerprint = write_tables(folder / "data/toy", images)  # so that both sides are compared
    write_features(
        folder / "results/features/toy/pixels",
        images_per_patient=images_per_patient,
        across=0,
        fingerprint=fingerprint,
    )
    for name, method in METHODS.items():
        made = study(folder, name=name, method=method, allow_useless=True, **more)
        open_release(made, name).run()
    return made


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study]:
    folder = tmp_path_factory.mktemp("released")
    return folder, make_releases(folder)


@pytest.fixture
def made(released: tuple[Path, Study], tmp_path: Path) -> tuple[Path, Study]:
    """Copies the two releases with their ledger and features; returns the folder and a study."""
    shutil.copytree(released[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, study(tmp_path, name="second", method="sums", allow_useless=True)


PLACES: dict[str, Path] = {}  # bundles outside the folder of releases


def bundle(folder: Path, name: str) -> Path:
    return PLACES.get(name, folder / "results/releases" / name)


def open_task(folder: Path, of: Study, *names: str, **options: Any) -> ComparisonTask:
    first, second = names or ("first", "second")
    values: dict[str, Any] = {"epsilon": 1.0, **options}
    return ComparisonTask.open_bundles(of, bundle(folder, first), bundle(folder, second), **values)


def compare(folder: Path, of: Study, *names: str, **options: Any) -> Any:
    """Runs a comparison as the command does."""
    task = open_task(folder, of, *names, **options)
    if (record := task.find_earlier()) is not None:
        return record
    task.check_before(anyway=True)  # the splits are small
    return task.run()


def ledger(folder: Path) -> Ledger:
    return Ledger.of_dataset(folder / "data", "toy")


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "calibration" not in path.parts and path.suffix != ".lock"
    }


def test_a_comparison_is_booked_closed_and_stored(made: tuple[Path, Study]) -> None:
    folder, of = made
    before = compose_bookings(ledger(folder).list_bookings(), 1e-4)
    record = compare(folder, of)
    output = folder / "results/comparisons/first_vs_second/comparison.json"
    assert parse_record(output.read_bytes()) == record
    entry = ledger(folder).read_entries()[-1]
    assert (entry.state, entry.number) == ("closed", record["entry"])
    assert entry.digest == record["record_sha256"]
    assert entry.booking.split == ledger(folder).read_entries()[0].booking.split
    assert entry.booking.units == ledger(folder).read_entries()[0].booking.units
    # the booked epsilon for test units matches the noise; training units have no booking
    (part,) = entry.booking.parts
    assert part.side == "test"
    for mechanism, stated in zip(part.mechanisms, record["mechanisms"], strict=True):
        assert stated["noise_standard_deviation"] == mechanism.noise_scale
        assert mechanism.sensitivity == stated["sensitivity"] == 1
    assert (part.epsilon, part.delta) == (record["epsilon"], record["delta"])
    assert part.epsilon <= record["epsilon_target"] == 1
    assert compose_bookings(ledger(folder).list_bookings(), 1e-4).epsilon == before.epsilon
    # the record's other numbers follow from the released number
    assert record["n"] == N
    assert record["difference"] == pytest.approx(record["released"]["difference"] / N)
    assert record["interval"][0] < record["difference"] < record["interval"][1]
    digests = [bundle_digest(bundle(folder, name)) for name in METHODS]
    assert [head["sha256"] for head in record["heads"]] == digests
    assert "secret" not in output.read_text()


def test_the_released_number_is_the_sum_plus_noise(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is recomputed from the heads' predictions, and the noise is subtracted."""
    folder, of = made
    seen = []
    add = Releases.release_gaussian

    def release(self: Any, name: str, sums: Any) -> Any:
        noisy = add(self, name, sums)
        seen.append(float((noisy - sums.values)[0, 0]))
        return noisy

    monkeypatch.setattr(Releases, "release_gaussian", release)
    record = compare(folder, of)
    store = FeatureStore(folder / "results/features/toy/pixels/test/manifest.json")
    right = []
    for name in METHODS:
        read = read_bundle(bundle(folder, name))
        rows = store.read() / np.linalg.norm(store.read(), axis=1, keepdims=True)
        scores = rows @ read.weights[:, :-1].T + read.weights[:, -1]
        right.append(scores.argmax(axis=1) == store.labels)
    squares, total = (
        record["released"][name] - noise
        for name, noise in zip(("squares", "difference"), seen, strict=True)
    )
    assert total == pytest.approx(right[1].sum() - right[0].sum(), abs=1e-3)
    assert squares == pytest.approx((right[1] != right[0]).sum(), abs=1e-3)
    assert min(map(abs, seen)) > 1e-9


def test_a_macro_accuracy_has_the_frequencies_that_bundles_state(
    released: tuple[Path, Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frequencies come from the one head that releases them; the sum equals a plain loop's."""
    shutil.copytree(released[0], tmp_path, dirs_exist_ok=True)
    of = study(tmp_path, name="third", method="balanced", allow_useless=True)
    with refuses(ConfigError, "macro_accuracy", "frequencies", "toy"):
        open_task(tmp_path, of, macro=True)
    open_release(of, "third").run()
    seen: list[float] = []
    add = Releases.release_gaussian

    def release(self: Any, name: str, sums: Any) -> Any:
        noisy = add(self, name, sums)
        seen.append(float((noisy - sums.values)[0, 0]))
        return noisy

    monkeypatch.setattr(Releases, "release_gaussian", release)
    record = compare(tmp_path, of, "first", "third", macro=True)
    stated = read_bundle(bundle(tmp_path, "third")).facts.head.class_priors
    assert stated is not None
    assert (record["metric"], record["class_frequencies"]) == ("macro_accuracy", list(stated))
    store = FeatureStore(tmp_path / "results/features/toy/pixels/test/manifest.json")
    heads = [read_bundle(bundle(tmp_path, name)) for name in ("first", "third")]
    first, third = (share_right(each, store) for each in heads)
    total = sum(
        (b - a) * min(stated) / stated[label]
        for a, b, label in zip(first, third, store.labels, strict=True)
    )
    noisy = record["released"]["difference"]
    assert noisy - seen[1] == pytest.approx(total, abs=1e-3)
    assert record["difference"] == pytest.approx(noisy / N / 3 / min(stated))
    told = open_task(tmp_path, of, "first", "third", macro=True).describe_result(record)
    check_tokens("\n".join(told), "macro accuracy", "frequencies")
    with refuses(PrivacyError, "entry 4", "--name"):
        compare(tmp_path, of, "first", "third")


def test_the_same_comparison_is_returned_and_another_adds(made: tuple[Path, Study]) -> None:
    folder, of = made
    record = compare(folder, of)
    kept = files_in(folder)
    assert compare(folder, of) == record
    assert files_in(folder) == kept
    (folder / "results/comparisons/first_vs_second/comparison.json").unlink()
    assert compare(folder, of) == record
    assert files_in(folder) == kept
    with refuses(PrivacyError, "first_vs_second", "entry 3", "--name"):
        compare(folder, of, epsilon=0.5)
    other = compare(folder, of, "second", "first", epsilon=0.5)
    tested = [each for each in ledger(folder).list_bookings() if each.parts[0].side == "test"]
    assert (len(tested), other["entry"]) == (2, 4)
    total = compose_bookings(tested, 1e-4)
    assert max(record["epsilon"], other["epsilon"]) < total.epsilon < 1.5


def test_heads_are_compared_by_patients(tmp_path: Path) -> None:
    of = make_releases(tmp_path, images_per_patient=3, of_patients=True)
    record = compare(tmp_path, of)
    assert (record["unit"], record["n"]) == ("patient", N // 3)
    assert ledger(tmp_path).read_entries()[-1].booking.column == "who"


def test_a_crash_before_noise_leaves_an_open_entry(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, of = made

    def crash(*_: Any, **__: Any) -> float:
        assert ledger(folder).read_entries()[-1].state == "open"
        raise DataError("the power failed")

    with monkeypatch.context() as patch:
        patch.setattr("dpprobe.release.compare.release_sums", crash)
        with refuses(DataError, "the power failed", "Entry 3"):
            compare(folder, of)
    assert ledger(folder).read_entries()[-1].is_counted
    with refuses(PrivacyError, "entry 3", "open", "--abandon 3"):
        compare(folder, of)
    ledger(folder).abandon_entry(3, "the power failed")
    assert compare(folder, of)["entry"] == 4


@pytest.mark.parametrize("step", ["ledger.ledger.Ledger.close_entry", "compare.atomic_path"])
def test_a_crash_after_noise_is_finished_without_new_noise(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder, of = made
    crash = Mock(side_effect=DataError("the power failed"))
    with monkeypatch.context() as patch:
        patch.setattr(f"dpprobe.release.{step}", crash)
        with refuses(DataError, "the power failed"):
            compare(folder, of)
    (staged,) = (folder / "results/comparisons/first_vs_second").glob(".entry-*.json")
    wanted = parse_record(staged.read_bytes())
    monkeypatch.setattr("dpprobe.release.compare.release_sums", crash)
    assert compare(folder, of) == wanted
    assert ledger(folder).read_entries()[-1].state == "closed"
    assert (staged.parent / "comparison.json").read_bytes() == staged.read_bytes()


def test_a_record_of_an_abandoned_entry_is_never_shown(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, of = made
    crash = Mock(side_effect=DataError("the power failed"))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "close_entry", crash)
        with refuses(DataError, "the power failed"):
            compare(folder, of)
    ledger(folder).abandon_entry(3, "nobody saw the record")
    assert compare(folder, of)["entry"] == 4
    assert not (folder / "results/comparisons/first_vs_second/.entry-3.json").exists()


def test_a_lost_record_and_a_lost_ledger_are_refused(made: tuple[Path, Study]) -> None:
    folder, of = made
    compare(folder, of)
    place = folder / "results/comparisons/first_vs_second"
    staged = place / ".entry-3.json"
    kept = staged.read_bytes()
    for path in (staged, place / "comparison.json"):
        path.write_bytes(kept.replace(b'"entry": 3', b'"entry": 4'))
    with refuses(PrivacyError, "entry 3", "comparison.json"):
        compare(folder, of)
    staged.write_bytes(kept)
    assert compare(folder, of)["entry"] == 3
    ledger(folder).path.unlink()
    with refuses(PrivacyError, "restore", "ledger.jsonl"):
        compare(folder, of)


def test_the_limit_of_the_dataset_holds_for_comparisons_and_later_releases(
    made: tuple[Path, Study],
) -> None:
    folder, _ = made
    limited = study(folder, name="second", method="sums", allow_useless=True, max_epsilon=3.1)
    with refuses(BudgetError, "comparison first_vs_second", "max_epsilon"):
        compare(folder, limited, epsilon=3.5)
    assert len(ledger(folder).read_entries()) == 2
    compare(folder, limited, epsilon=2.0)
    with refuses(BudgetError, "max_epsilon"):
        compare(folder, limited, "second", "first", epsilon=2.5)
    # the limit includes earlier comparisons if a release measures on the same test units
    measured = study(
        folder,
        name="third",
        method="sums",
        allow_useless=True,
        max_epsilon=3.1,
        epsilon=0.1,
        evaluate={"epsilon": 2.5},
    )
    with refuses(BudgetError, "third", "max_epsilon"):
        open_release(measured, "third").run()


def test_delta_above_one_over_n_is_refused(made: tuple[Path, Study]) -> None:
    folder, _ = made
    of = study(folder, name="second", method="sums", allow_useless=True, more={"delta": 2 / N})
    with refuses(PrivacyError, "delta", "1/n"):
        compare(folder, of)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"dataset": "other"}, ("other", "toy", "--dataset")),
        ({"name": "../x"}, ("../x", "--name")),
    ],
)
def test_wrong_options_are_refused(
    made: tuple[Path, Study], options: dict[str, Any], tokens: tuple[str, ...]
) -> None:
    with refuses(ConfigError, *tokens):
        open_task(*made, **options)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_without_privacy_is_refused(made: tuple[Path, Study], epsilon: float) -> None:
    with refuses(PrivacyError):
        compare(*made, epsilon=epsilon)
    assert len(ledger(made[0]).read_entries()) == 2


def test_bundles_that_do_not_verify_or_are_one_are_refused(made: tuple[Path, Study]) -> None:
    folder, of = made
    with refuses(ConfigError, "same head"):
        open_task(folder, of, "first", "first")
    path = bundle(folder, "second") / "privacy.json"
    statement = read_json(path)
    statement["mechanisms"][0]["noise_multiplier"] *= 2
    path.write_text(json.dumps(statement))
    write_sums(path.parent)
    with refuses(DataError, "second", "does not verify"):
        open_task(folder, of)


def test_heads_of_other_classes_are_refused(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, of = made
    path = bundle(folder, "second") / "bundle.json"
    facts = read_json(path)
    path.write_text(json.dumps(facts | {"class_names": ["b", "a", "c"]}))
    write_sums(path.parent)
    monkeypatch.setattr("dpprobe.release.asked_comparison.read_verified", read_bundle)
    with refuses(ConfigError, "a, b, c", "b, a, c"):
        open_task(folder, of)


def test_features_of_another_backbone_and_missing_features_are_refused(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, of = made
    elsewhere = shutil.copytree(bundle(folder, "second"), folder / "elsewhere/second")
    path = elsewhere / "bundle.json"
    facts = read_json(path)
    monkeypatch.setattr("dpprobe.release.asked_comparison.read_verified", read_bundle)
    monkeypatch.setitem(PLACES, "second", elsewhere)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"weights_sha256": "1" * 64}, "SHA-256"),
        ({"preprocessing": {"color": "rgb"}}, "preprocessing"),
        ({"dtype": "float16"}, "float16"),
        ({"probe": {"sha256": "1" * 64, "norm": 2.0, "sample": [1.5]}}, "test image"),
    ]
    for change, token in changes:
        path.write_text(json.dumps(facts | {"backbone": facts["backbone"] | change}))
        write_sums(path.parent)
        with refuses(DataError, "second", token):
            compare(folder, of)
    path.write_text(json.dumps(facts | {"backbone": facts["backbone"] | {"name": "unknown"}}))
    write_sums(path.parent)
    with refuses(ConfigError, "unknown", "pixels", "backbones"):
        compare(folder, of)
    path.write_text(json.dumps(facts))
    write_sums(path.parent)
    (folder / "results/features/toy/pixels/test/manifest.json").unlink()
    with refuses(DataError, "manifest.json", "pixels", "features"):
        compare(folder, of)


def test_heads_of_another_split_are_refused_and_unknown_heads_told(
    made: tuple[Path, Study], caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = made
    other = study(folder, name="second", method="sums", allow_useless=True, more={"split_seed": 7})
    with refuses(PrivacyError, "another split"):
        compare(folder, other)
    ledger(folder).path.unlink()
    task = open_task(*made)
    with caplog.at_level(logging.WARNING, "dpprobe"):
        task.check_before(anyway=True)
    told = [each.getMessage() for each in caplog.records if "ledger.jsonl" in each.getMessage()]
    assert len(told) == 2


def test_images_on_both_sides_and_moving_splits_are_refused(
    made: tuple[Path, Study],
) -> None:
    folder, of = made
    by_class = study(
        folder, name="second", method="sums", allow_useless=True, more={"split_by": "class"}
    )
    task = open_task(folder, by_class)
    with refuses(PrivacyError, "split_by", "class"):
        task.check_before()
    write_features(folder / "results/features/toy/pixels", across=2)
    with refuses(PrivacyError, "both splits"):
        compare(folder, of)


def test_null_rows_are_right_for_no_head(made: tuple[Path, Study]) -> None:
    folder, _ = made
    store = FeatureStore(folder / "results/features/toy/pixels/test/manifest.json")
    read = read_bundle(bundle(folder, "first"))
    rows = store.read()
    rows[3] = math.nan

    class Nulls(FeatureStore):
        def read_blocks(self, *_: Any, **__: Any) -> Any:
            yield 0, rows

    nulls = Nulls(store.path)
    whole, shares = share_right(read, store), share_right(read, nulls)
    assert np.flatnonzero(np.isnan(shares)).tolist() == [3]
    np.testing.assert_array_equal(np.delete(shares, 3), np.delete(whole, 3))


def test_the_command_plans_compares_and_returns(
    made: tuple[Path, Study], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, of = made
    monkeypatch.setattr("dpprobe.study.check_command.read_study", lambda _: of)
    words = ("compare", bundle(folder, "first"), bundle(folder, "second"), "--epsilon", 1)
    assert run_main(monkeypatch, *words, "--plan", "--anyway") == 0
    planned = capsys.readouterr().out
    check_tokens(planned, "epsilon 1", "120", "10%", "30%", "80%")
    assert len(ledger(folder).read_entries()) == 2
    assert run_main(monkeypatch, *words, "--anyway") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(planned)
    check_tokens(shown, "95% CI", "entry 3", "first", "second")
    assert run_main(monkeypatch, *words, "--anyway") == 0
    again = capsys.readouterr().out
    assert again.splitlines()[1:] == shown.removeprefix(planned).splitlines()
    assert len(ledger(folder).read_entries()) == 3
    refused = run_main(monkeypatch, *words[:-1], 0.1, "--name", "less")
    check_tokens(str(refused), "--anyway")
