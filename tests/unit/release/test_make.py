"""A release is made once, is booked before noise is drawn, and contains nothing forbidden."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.errors import (
    BudgetError,
    ConfigError,
    DataError,
    DeviceError,
    DpprobeError,
    PrivacyError,
)
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads import auto, auto_rule
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Heads
from dpprobe.json_values import hash_value
from dpprobe.privacy.keystream import Keystream
from dpprobe.release import bundle, make, packing, planned_release
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.release_folders import ReleaseFolders
from dpprobe.release.stated_plans import check_price, read_plan
from dpprobe.release.verification import method as checking
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.training.fit_inputs import FitInputs
from tests.support.cell_files import write_cell
from tests.support.programs import run_program
from tests.support.refusals import check_tokens, refuses
from tests.support.release_study import METHODS, release, study, write_features

POINT = {"positive_class": "b", "sensitivity": 0.999}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_features(tmp_path)
    return tmp_path


def ledger(folder: Path) -> Ledger:
    return Ledger.of_dataset(folder / "data", "toy")


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


def test_a_missing_gpu_is_reported_before_a_booking(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only large exact sums use the study's GPU; other heads are drawn on the CPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    exact, other = (
        study(folder, method=name, name=name).model_copy(update={"device": "cuda"})
        for name in ("steps", "covariance")
    )
    release(folder, exact, "steps")
    for name in ("LEAST_STEP", "LEAST_FIT"):
        monkeypatch.setattr(f"dpprobe.heads.fit_device.{name}", 1)
    release(folder, other, "covariance")
    again = study(folder, method="steps", name="again").model_copy(update={"device": "cuda"})
    with pytest.raises(DeviceError):
        release(folder, again, "again")
    assert [entry.booking.release for entry in ledger(folder).read_entries()] == [
        "steps",
        "covariance",
    ]


def test_a_device_with_inexact_products_is_refused_before_a_booking(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = study(folder, method="steps", name="steps")
    monkeypatch.setattr("torch.Tensor.double", torch.Tensor.float)
    with refuses(DeviceError, "exact"):
        release(folder, one, "steps")
    assert not ledger(folder).read_entries()


def test_a_full_disk_is_reported_before_a_booking(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10**9, free=10))
    with pytest.raises((OSError, DataError), match=r"(?i)no space|full"):
        release(folder, study(folder))
    assert not ledger(folder).read_entries()


def test_a_useless_head_is_refused_before_it_is_booked(folder: Path) -> None:
    """The planner refuses if the study has no benchmark; otherwise the benchmark does."""
    few = {"epsilon": 0.01, "method": "steps"}
    with refuses(PrivacyError, "release first", "epsilon 0.01", "`allow_useless: true`"):
        release(folder, study(folder, **few))
    path = write_cell(folder / "results", class_names=("a", "b", "c"), quality=0.0)
    with refuses(PrivacyError, "release first", path, "`allow_useless: true`"):
        release(folder, study(folder), benchmark=path)
    assert ledger(folder).read_entries() == []
    assert not (folder / "results/releases").exists()
    made = release(folder, study(folder, allow_useless=True), benchmark=path)
    assert release(folder, study(folder), benchmark=path) == made
    (entry,) = ledger(folder).read_entries()
    assert entry.state == "closed"


def test_a_made_release_is_final_and_outlives_a_change_of_the_data(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = release(folder, study(folder))
    before = contents(output)
    for path in output.iterdir():
        os.utime(path, (1, 1))
    release(folder, study(folder))
    assert contents(output) == before
    assert min(path.stat().st_mtime for path in output.iterdir()) > 1, "newer than its inputs"
    write_features(folder, shift=0.5)
    release(folder, study(folder))
    check_tokens(caplog.text, "release first", "data")
    with refuses(PrivacyError, "release first", "entry 1", "name"):
        release(folder, study(folder, epsilon=1))
    assert contents(output) == before
    assert len(ledger(folder).read_entries()) == 1


def test_a_release_of_copies_warns_and_does_not_count_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_features(folder, copies={"image": {"rows": 37, "most": 5}})
    output = release(folder, study(folder))
    warned = caplog.text.partition("release first")[2]
    check_tokens(warned, "picture", "row")
    assert "37 " not in warned
    stated = json.loads((output / bundle.STATEMENT_FILE).read_text())
    assert "copies" not in stated
    assert "copies_of_items" in stated["not_covered"]
    assert verify_bundle(output).passed
    earlier = ["toy"]
    for name, rows, more in (("none", 0, {}), ("of_patients", 7, {"of_patients": True})):
        caplog.clear()
        write_features(
            folder,
            images_per_patient=3,
            shift=float(rows),
            copies={"image": {"rows": rows, "most": 5}, "patient": {"rows": rows, "most": 5}},
        )
        others = {"other_units_than": [*earlier]}
        release(folder, study(folder, called=name, name=name, more=others, **more), name)
        earlier.append(name)
        assert ("another patient" in caplog.text) == (rows > 0)


def test_a_bundle_that_is_gone_or_altered_is_not_made_again(folder: Path) -> None:
    output = release(folder, study(folder))
    before = contents(output)
    *most, last = before[bundle.HEAD_FILE]
    (output / bundle.HEAD_FILE).write_bytes(bytes([*most, last ^ 1]))
    with refuses(PrivacyError, output / "head.safetensors"):
        release(folder, study(folder))
    (output / bundle.HEAD_FILE).unlink()
    (output / ".privacy.json.0123abcd.partial").touch()
    release(folder, study(folder))
    assert contents(output) == before, "what is missing is put back"
    shutil.rmtree(output)
    release(folder, study(folder))
    assert contents(output) == before
    for kept in output.parent.glob(".first.*"):
        shutil.rmtree(kept)
    release(folder, study(folder))
    (output / bundle.CARD_FILE).unlink()
    digest = ledger(folder).read_entries()[0].digest
    with refuses(PrivacyError, "SHA256SUMS", digest):
        release(folder, study(folder))
    (output / bundle.CARD_FILE).write_bytes(before[bundle.CARD_FILE])
    release(folder, study(folder))
    assert len(ledger(folder).read_entries()) == 1


def test_a_damaged_stage_is_never_published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may lose a byte between two runs, with an open or a closed entry."""
    die = Mock(side_effect=DataError("died early"))

    def spoil_head(staged: Path) -> bytes:
        head = staged / bundle.HEAD_FILE
        whole = head.read_bytes()
        head.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        return whole

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "close_entry", die)
        with refuses(DataError, "died early"):
            release(folder, study(folder))
    output = folder / "results/releases/first"
    (staged,) = output.parent.glob(".first.*.staged")
    whole = spoil_head(staged)
    with monkeypatch.context() as patch:
        patch.setattr(make.ReleaseTask, "make_release", die)  # refused before any work
        with refuses(PrivacyError, "entry 1", "open"):
            release(folder, study(folder))
    (staged / bundle.HEAD_FILE).write_bytes(whole)
    assert release(folder, study(folder)) == output
    shutil.rmtree(output)
    spoil_head(staged)
    bundle.write_sums(staged)  # consistent with its own hashes, but not with the closed entry
    with refuses(PrivacyError, "SHA256SUMS", ledger(folder).read_entries()[0].digest):
        release(folder, study(folder))
    assert not output.exists()


def test_a_bundle_without_its_ledger_is_refused(folder: Path) -> None:
    output = release(folder, study(folder))
    ledger(folder).path.unlink()
    for name in ("first", "second"):
        with refuses(PrivacyError, "ledger", output.parent):
            release(folder, study(folder, name=name), name)
    assert bundle.read_bundle(output)
    assert not ledger(folder).path.exists()


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("max_epsilon", 2.5),
        ("max_risk", {"advantage": 0.25}),
        ("max_risk", {"true_positives": 0.008, "at": 0.001}),
    ],
)
def test_releases_together_keep_to_a_limit(folder: Path, key: str, limit: Any) -> None:
    """Each release has epsilon 2 at delta 1e-4, within the limit; both together exceed it."""
    release(folder, study(folder, **{key: limit}))
    with pytest.raises(BudgetError, match=f"above {key}"):
        release(folder, study(folder, name="second", **{key: limit}), "second")
    assert len(ledger(folder).read_entries()) == 1
    assert not (folder / "results/releases/second").exists()
    output = release(folder, study(folder, name="second"), "second")
    second, first = (bundle.read_bundle(output.with_name(name)) for name in ("second", "first"))
    assert not np.array_equal(first.weights, second.weights)
    spent = second.statement["ledger"]
    assert spent["releases"] == 2
    assert 2 < spent["epsilon"] < 4


@pytest.mark.usefixtures("coarse_risks")
@pytest.mark.parametrize("method", ["covariance", "steps"])
def test_a_release_with_a_risk_target_states_it_and_obeys_max_risk(
    folder: Path, method: str
) -> None:
    """The release is booked like any other, and its statement has target, mu and epsilon."""
    limit = {"max_risk": {"advantage": 0.3}}
    asked = study(folder, method=method, epsilon={"advantage": 0.3}, **limit)
    output = release(folder, asked)
    statement = bundle.read_bundle(output).statement
    assert statement["risk_target"] == {"advantage": 0.3}
    assert 2 * statement["allows"]["balanced_accuracy"] - 1 <= 0.3 + 1e-9
    exact = method == "covariance"
    assert ("mu" in statement) == exact
    if exact:
        assert statement["mu"] == pytest.approx(0.7706, abs=1e-3)
        card = (output / "README.md").read_text("utf-8")
        shown = re.findall(r"advantage 0\.3 \(mu (\S+)\)", card)[0]
        assert statement["mu"] <= float(shown) <= statement["mu"] * 1.001
    assert "advantage 0.3" in (output / bundle.PAGE_FILE).read_text("utf-8")
    assert verify_bundle(output).passed
    # the default method sums over all rows with Gaussian noise: no search for epsilon is needed
    asked = study(folder, name="second", epsilon={"advantage": 0.25}, **limit)
    with pytest.raises(BudgetError, match="above max_risk"):
        release(folder, asked, "second")
    _, smaller = read_plan({**statement, "risk_target": {"advantage": 0.2}})
    with refuses(PrivacyError, "advantage 0.2"):
        check_price(smaller, True)


def test_the_limit_is_at_the_dataset_s_delta(folder: Path) -> None:
    with pytest.raises(PrivacyError, match="above max_epsilon"):  # 2 at the release's delta
        release(folder, study(folder, max_epsilon=2.3, delta=3e-3))
    release(folder, study(folder, max_epsilon=3, delta=3e-3))
    with pytest.raises(PrivacyError, match="max_epsilon"):
        release(folder, study(folder, name="second", max_epsilon=3, delta=3e-3), "second")


def test_a_delta_above_one_over_n_is_refused_whatever_the_study_allows(folder: Path) -> None:
    allowed = {"allow_delta_above_one_over_n": True}
    above = ("delta 0.01", "1/n = 0.00333", "n = 300")
    with refuses(PrivacyError, *above):
        release(folder, study(folder, delta=0.01).model_copy(update=allowed))
    # the ledger's limit applies at the dataset's delta
    limited = study(folder, max_epsilon=3, delta=1e-4).model_copy(update={"delta": 0.01, **allowed})
    with refuses(PrivacyError, "max_epsilon", "toy", *above):
        release(folder, limited)
    assert ledger(folder).read_entries() == []
    assert not (folder / "results/releases/first").exists()


def test_a_head_abandoned_while_its_job_was_at_work_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abandoned(*arguments: Any, **rest: Any) -> None:
        write_bundle(*arguments, **rest)
        ledger(folder).abandon_entry(1, "somebody took the job for dead")

    write_bundle = bundle.write_bundle
    monkeypatch.setattr(packing, "write_bundle", abandoned)
    with pytest.raises(PrivacyError, match="was abandoned"):
        release(folder, study(folder))
    assert not list((folder / "results/releases").rglob("*.safetensors"))


def test_an_error_after_the_booking_says_that_the_entry_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any, **__: Any) -> Heads:
        raise DataError("training diverged")

    with monkeypatch.context() as patch:
        patch.setattr(make, "fit_heads", diverge)
        with refuses(DataError, "diverged", "Entry 1", ledger(folder).path):
            release(folder, study(folder))
    with pytest.raises(PrivacyError, match="--abandon 1 --reason"):
        release(folder, study(folder))
    (entry,) = ledger(folder).read_entries()
    folders = ReleaseFolders("first", folder / "results/releases/first", ledger(folder).path)
    left = [folders.staged(entry), folders.partial(entry)]
    for each in left:
        each.mkdir(parents=True)
    ledger(folder).abandon_entry(1, "it diverged")
    release(folder, study(folder))
    assert not any(each.exists() for each in left), "nobody may see an abandoned head"
    assert [entry.state for entry in ledger(folder).read_entries()] == ["abandoned", "closed"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"more": {"split_by": "class"}}, ("releases.first", "dataset toy", "split_by", "class")),
        ({"calibrate": {}}, ("releases.first", "calibrate", "epsilon")),
        (
            {"calibrate": {"epsilon": 2, "operating_point": POINT | {"positive_class": "z"}}},
            ("releases.first", "operating_point", "z"),
        ),
        (
            {"calibrate": {"epsilon": 8, "operating_point": POINT}},
            ("operating_point", 0.999, "test units"),
        ),
        ({"sign_key": "none.pem"}, ("sign_key", "none.pem")),
        ({"sign_key": "pyproject.toml"}, ("pyproject.toml",)),
        ({"card": {"contact": "see /home/me/notes"}}, ("card", "/home/")),
        ({"evaluate": {"epsilon": 8}, "shares": (8, 1, 1)}, ("`metric: macro_accuracy`",)),
        (
            {"more": {"unit": "image", "max_images_per_patient": 2}, "of_patients": True},
            ("max_images_per_patient", 2),
        ),
    ],
)
def test_a_fault_is_refused_before_the_booking(
    folder: Path, options: dict[str, Any], words: tuple[object, ...]
) -> None:
    """Faults are refused even if the study was not checked."""
    asked = dict(options)
    write_features(folder, shares=asked.pop("shares", (1, 1, 1)), images_per_patient=3)
    with refuses(DpprobeError, *words):
        release(folder, study(folder, **asked))
    assert not ledger(folder).path.exists()


def test_a_plan_of_another_method_is_refused_before_the_booking(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PrivacyError("the plan belongs to another method")

    monkeypatch.setattr(planned_release, "check_plan", refuse)
    with pytest.raises(PrivacyError, match="belongs to another method"):
        release(folder, study(folder))
    assert not ledger(folder).path.exists()


def test_a_release_names_the_release_that_it_replaces(folder: Path) -> None:
    first = release(folder, study(folder))
    made = study(folder, name="second", predecessor="first")
    made = made.model_copy(update={"releases": made.releases | study(folder).releases})
    second = release(folder, made, "second")
    named = bundle.read_bundle(second).statement["predecessor"]
    assert named == {"name": "first", "sha256": bundle.bundle_digest(first)}
    report = verify_bundle(second, predecessors=[first])
    assert report.passed, report.summarize()
    (chain,) = [check for check in report.checks if check.name == "predecessors"]
    assert chain.passed
    check_tokens(chain.detail, "first")
    # a closed release is final: removing the card's name later makes no other release
    kept = contents(second)
    release(folder, study(folder, name="second"), "second")
    assert contents(second) == kept
    (first / bundle.CARD_FILE).write_text("another promise")
    for wrong, named in ((first, "README.md"), (folder, "predecessor")):
        with refuses((DataError, ConfigError), wrong, named):
            release(folder, study(folder, name="third", predecessor=str(wrong)), "third")
    assert len(ledger(folder).read_entries()) == 2, "nothing is booked"


def test_no_random_word_is_drawn_from_a_seed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(*_: Any) -> Keystream:
        pytest.fail("a release drew from a seed")

    monkeypatch.setattr(Keystream, "from_seed", seeded)
    for name in ("open_stream", "derived_seed"):
        monkeypatch.setattr(f"dpprobe.privacy.entropy.{name}", seeded)
    for method in METHODS:
        made = study(folder, name=method, method=method, evaluate={"epsilon": 1})
        release(folder, made, method)


def test_a_bundle_contains_no_private_ids_hashes_paths_dates_or_exact_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "secret-user")
    monkeypatch.setenv("HOSTNAME", "secret-host")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host")
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    made = study(folder, method="search", evaluate={"epsilon": 1})
    output = release(folder, made)
    stores = [FeatureStore(folder / split / "manifest.json") for split in ("train", "test")]
    forbidden = {
        "secret-id": "an id of a private row",
        "secret-host": "a host",
        str(folder): "a path",
        "secret-fingerprint": "the fingerprint of the dataset",
        folder.name: "a part of a path",
        "secret-user": "a user",
        "near_duplicates": "the check's name",
        '"seeds"': "seeds",
    }
    for store in stores:
        forbidden[store.fingerprint] = "a fingerprint of features"
        for record in store.shards:
            forbidden |= dict.fromkeys(
                [record.sha256, record.features_sha256, record.rows_sha256], "a private hash"
            )
    entry = ledger(folder).read_entries()[0]
    forbidden |= dict.fromkeys(entry.booking.identity.split(), "the identity")
    forbidden[entry.booked] = "a time"
    for name, content in contents(output).items():
        for text, what in forbidden.items():
            assert text.encode() not in content, f"{name}: {what} ({text!r})"
        if name != bundle.HEAD_FILE:
            text = content.decode()
            assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text), f"{name}: a date"
            assert not re.search(r"(?<![\w.:/])/(home|tmp|root|usr|var|work|data)/", text), name
    numbers = _numbers(json.loads((output / bundle.STATEMENT_FILE).read_text()))
    labels = np.bincount(stores[0].labels)
    assert not {int(count) for count in labels} & numbers - {100, 40}, "exact counts of classes"
    assert {300, 120} <= numbers


def _numbers(value: Any) -> set[int]:
    if isinstance(value, dict):
        return set().union(*(_numbers(item) for item in value.values()), set())
    if isinstance(value, list):
        return set().union(*(_numbers(item) for item in value), set())
    return {value} if isinstance(value, int) and not isinstance(value, bool) else set()


@pytest.mark.slow
def test_a_kill_at_any_step_causes_no_second_or_unbooked_draw(
    tmp_path: Path, repository: Path
) -> None:
    words = [sys.executable, "-m", "tests.support.kill_walk", str(tmp_path)]
    result = run_program(
        words,
        cwd=repository,
        check=False,
        timeout=500,
        env=os.environ | {"PYTHONPATH": f"{repository}/src"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert {"draw 1", "draw 4", "lock"} <= {record["before"] for record in records}
    assert len(records) > 25
    outcomes = set()
    for record in records:
        where = f"before step {record['step']}, {record['before']}"
        assert not record["unbooked draw"], where
        left = record["left"]
        assert len(left["entries"]) <= 1, where
        if "next" not in record:  # an earlier kill left the same files
            continue
        assert record["killed"] == -9, where
        then = record["then"]
        assert len({*left["heads"].values(), *then["heads"].values()}) <= 1 or (
            left["entries"] == []
        ), f"{where}: two heads for one entry"
        if record["next"] == 0:
            assert then["entries"] == ["closed"], where
            assert set(then["heads"]) == {"first", ".first.entry-1.staged"}, where
        else:
            assert record["next"] == 2, where
            assert "is open" in record["said"], where
            assert left["entries"] == then["entries"] == ["open"], where
            assert record["after abandon"] == 0, where
            assert record["in the end"]["entries"] == ["abandoned", "closed"], where
            heads = record["in the end"]["heads"]
            assert set(heads) == {"first", ".first.entry-2.staged"}, f"{where}: an old head stays"
            assert len(set(heads.values())) == 1, where
        outcomes.add((record["next"], tuple(left["entries"])))
    # no entry: made; open entry: refused, or finished if a whole bundle is staged; closed: finished
    assert {(0, ()), (2, ("open",)), (0, ("open",)), (0, ("closed",))} <= outcomes


def test_a_calibration_that_adds_too_little_noise_is_refused(folder: Path) -> None:
    made = study(folder)
    release(folder, made)
    output = folder / "results/releases"
    shutil.rmtree(output)
    shutil.rmtree(folder / "data")
    for path in (folder / "results/calibration").rglob("*.json"):
        record = json.loads(path.read_text())
        del record["sha256"]
        record["factor"] *= 0.5
        path.write_text(json.dumps({**record, "sha256": hash_value(record)}))
    with refuses(PrivacyError, "epsilon 2", "mechanisms"):
        release(folder, made)
    assert not ledger(folder).path.exists()


def test_a_release_of_auto_states_its_rule_and_the_chosen_head(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new rule leaves the release as it is; only the check of its rule mentions other options."""
    output = release(folder, study(folder, method="auto"))
    facts = DataFacts(
        n=300, dimension=6, classes=3, multi_label=False, epsilon=2.0, delta=1e-4, unit="image"
    )
    options = bundle.read_bundle(output).facts.head.options
    assert options["chosen"]["head"] == auto_rule.choose_head(facts)["head"]
    assert f"auto rule {auto_rule.RULE}" in (output / "README.md").read_text()
    assert {check.name: check.passed for check in verify_bundle(output).checks}["rule of auto"]
    before = contents(output)
    monkeypatch.setattr(auto, "choose_head", lambda *_, **__: {"head": "newton"})
    (wrong,) = (check for check in verify_bundle(output).checks if check.passed is False)
    assert (wrong.name, "head.options" in wrong.detail) == ("rule of auto", True)
    for module in (auto, checking):
        monkeypatch.setattr(module, "RULE", auto_rule.RULE + 1)
    release(folder, study(folder, method="auto"))
    assert contents(output) == before
    report = verify_bundle(output)
    assert report.passed
    (check,) = (each for each in report.checks if each.name == "rule of auto")
    assert check.passed is None
    check_tokens(check.detail, f"rule {auto_rule.RULE}", options["chosen"]["head"])


@pytest.mark.parametrize(
    ("metric", "shown", "balances"),
    [
        (None, None, False),
        ("accuracy", None, False),
        ("macro_accuracy", None, True),
        ("macro_accuracy", "accuracy", True),
        ("accuracy", "macro_accuracy", False),  # `init` may derive the dataset's metric from labels
    ],
)
def test_a_release_of_auto_balances_by_the_metric_that_it_publishes(
    folder: Path, metric: str | None, shown: str | None, balances: bool
) -> None:
    tested = {"evaluate": {"epsilon": 8, "metric": metric}} if metric else {}
    output = release(folder, study(folder, method="auto", more={"metric": shown}, **tested))
    head = bundle.read_bundle(output).facts.head
    assert (head.class_priors is not None) is balances
    said = json.loads((output / "privacy.json").read_text())
    assert said["chosen_from"].get("metric") == metric
    names = [item["name"] for item in said["mechanisms"]]
    assert names.count("class_counts") == balances
    assert verify_bundle(output).passed


@pytest.mark.parametrize("metric", [None, "macro_accuracy"])
def test_a_bundle_of_rule_1_still_verifies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, metric: str | None
) -> None:
    """Rule 1 ignored the metric: its facts have none, and heads balance only on request."""
    tested = {"evaluate": {"epsilon": 8, "metric": metric}} if metric else {}
    read = FitInputs.read_facts
    with monkeypatch.context() as earlier:
        earlier.setattr(auto, "RULE", 1)
        earlier.setattr(FitInputs, "read_facts", lambda self, target, **_: read(self, target))
        output = release(folder, study(folder, method="auto", **tested))
    said = json.loads((output / "privacy.json").read_text())
    assert said["chosen_from"]["rule"] == "auto rule 1"
    assert "metric" not in said["chosen_from"]
    report = verify_bundle(output)
    assert report.passed
    (check,) = (each for each in report.checks if each.name == "rule of auto")
    assert check.passed is True
    check_tokens(check.detail, "rule 1")
    before = contents(output)
    release(folder, study(folder, method="auto", **tested))  # final, whatever rule 2 would choose
    assert contents(output) == before


def test_verification_fails_if_the_chosen_head_breaks_the_rule_of_auto(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is not balanced, although rule 2 requires it for a bundle with macro accuracy."""
    tested = {"evaluate": {"epsilon": 8, "metric": "macro_accuracy"}}
    read = FitInputs.read_facts
    with monkeypatch.context() as broken:
        broken.setattr(FitInputs, "read_facts", lambda self, target, **_: read(self, target))
        output = release(folder, study(folder, method="auto", **tested))
    wrong = {check.name for check in verify_bundle(output).checks if check.passed is False}
    assert "rule of auto" in wrong


def test_the_price_of_the_choice_waits_for_all_quick_checks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release takes minutes; an unreadable key must be reported at once."""
    module = "dpprobe.release.parts.choice.measure"
    monkeypatch.setattr(f"{module}.choice_block", lambda *_, **__: 1 / 0)
    key = folder / "key.pem"
    key.write_text("no key")
    with refuses(ConfigError, key):
        release(folder, study(folder, sign_key=str(key)))
    with pytest.raises(ZeroDivisionError):
        release(folder, study(folder))
    assert ledger(folder).read_entries() == []


def with_copies_across(folder: Path, count: int) -> None:
    """Notes in both manifests that `count` images are in both splits (`duplicates: warn`)."""
    for split in ("train", "test"):
        path = folder / split / "manifest.json"
        body = json.loads(path.read_text())
        del body["manifest_sha256"]
        body["promise"] = PromiseFacts(copies_across=count).to_dict()
        path.write_text(json.dumps(body | {"manifest_sha256": hash_value(body)}))


@pytest.mark.parametrize(("part", "epsilon"), [("evaluate", 1), ("calibrate", 4), ("monitor", 2)])
def test_no_result_is_measured_if_test_images_are_in_the_training_split(
    folder: Path, part: str, epsilon: float
) -> None:
    """For such an image, epsilons of head and result add up: 3.81, above the ledger's limit of 3.

    A head without test results uses only the training split.
    """
    with_copies_across(folder, 1)
    with refuses(PrivacyError, "release first", "splits", "`duplicates: error`"):
        release(folder, study(folder, **{part: {"epsilon": epsilon}}))
    assert not ledger(folder).read_entries()
    assert verify_bundle(release(folder, study(folder))).passed
    with_copies_across(folder, 0)
    release(folder, study(folder, name="tested", **{part: {"epsilon": epsilon}}), "tested")
