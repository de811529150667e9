"""Bundles of private heads: complete, verified, used elsewhere; and fits that cannot be saved."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from dpprobe.errors import ConfigError, DataError, DpprobeError, PrivacyError
from dpprobe.estimator import planned_fit
from dpprobe.estimator.private_classifier import PrivateClassifier
from dpprobe.estimator.public_functions import verify
from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.parts.choice import fits_block
from dpprobe.release.predict import Predictor
from tests.support.classifiers import FAST, make_benchmark, make_budget, make_private, make_rows
from tests.support.refusals import check_tokens, refuses
from tests.unit.release.test_signing import write_keys

GROUPS = [f"Jane Roe {row // 3}" for row, _ in enumerate(make_rows().y)]
NAMES = ["keratosis", "melanoma", "naevus"]


def save(fitted: PrivateClassifier, folder: Path, **changes: Any) -> Path:
    told = {"each_by_itself": True, "pretrained": True}
    values = {"dataset": "lesions", "model": "clip-vit", **told, **changes}
    return fitted.save_bundle(folder, **values)


def fit(**changes: Any) -> PrivateClassifier:
    X, y = make_rows()
    names = np.array(NAMES)[y]
    groups = GROUPS if changes.get("unit") in ("group", "patient") else None
    return make_private(classes=NAMES, **changes).fit(X, names, groups=groups)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[PrivateClassifier, Path]:
    fitted = fit()
    return fitted, save(fitted, tmp_path_factory.mktemp("releases") / "lesions_v1")


TUNED = {"head": "tuned", "base": FAST, "search": {"learning_rate": [0.5, 1.0]}}
HEADS = [FAST, "auto", "feature_covariance", TUNED]
SAMPLED = {"head": "sgd", "batch_size": 30, "steps": 5}


# The unit does not change the epsilon of sampled batches, which takes seconds to compute.
@pytest.mark.parametrize(
    ("head", "unit"),
    [*itertools.product(HEADS, ["row", "group", "image", "patient"]), (SAMPLED, "row")],
)
def test_a_bundle_is_verified(head: Any, unit: Any, tmp_path: Path) -> None:
    fitted = fit(head=head, unit=unit)
    report = verify(save(fitted, tmp_path / "lesions_v1"))
    assert report.passed, [check for check in report.checks if check.passed is False]
    (backbone,) = [check for check in report.checks if check.name == "backbone"]
    check_tokens(backbone.detail, "clip-vit")


def test_a_signed_bundle_is_verified_with_its_key(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    folder = save(fit(), tmp_path / "signed", sign_key=private)
    assert verify(folder, public_key=public).passed
    (folder / "README.md").write_text("another text")
    assert not verify(folder, public_key=public).passed


def test_others_use_it_on_vectors(bundle: tuple[PrivateClassifier, Path]) -> None:
    fitted, folder = bundle
    X, _ = make_rows(3)
    predictor = Predictor.load_bundle(folder)
    assert predictor.classes == tuple(NAMES)
    values = predictor.predict_vectors(X)
    np.testing.assert_allclose(values, fitted.predict_proba(X), atol=1e-6)
    assert predictor.name_classes(values) == fitted.predict(X).tolist()
    np.testing.assert_array_equal(predictor.predict_vectors(X[5:6]), values[5:6])


def test_saved_files_contain_no_private_ids_paths_features_or_labels(tmp_path: Path) -> None:
    folder = save(fit(unit="group"), tmp_path / "lesions_v1")
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    X, y = make_rows()
    assert b"Jane Roe" not in content
    assert str(tmp_path).encode() not in content
    assert X[0].tobytes() not in content
    assert y[:9].tobytes() not in content


def test_a_benchmark_cannot_be_saved_whatever_its_flag_says_later(tmp_path: Path) -> None:
    fitted = make_benchmark().fit(*make_rows())
    stated = fitted.privacy_
    fitted.set_params(benchmark=False, budget=make_budget(), epsilon=9.0, head="prototypes")
    assert fitted.privacy_ == stated
    assert stated["mode"] == "benchmark"
    with pytest.raises(PrivacyError, match="benchmark"):
        save(fitted, tmp_path / "v1")


def test_parameters_that_change_after_a_private_fit_change_no_statement(tmp_path: Path) -> None:
    fitted = fit()
    stated, answers = fitted.privacy_, fitted.predict_proba(make_rows().X)
    fitted.set_params(
        benchmark=True,
        budget=None,
        epsilon=9.0,
        delta=0.1,
        head="prototypes",
        unit="group",
        classes=NAMES[:2],
    )
    assert fitted.privacy_ == stated
    assert stated["mode"] == "release"
    np.testing.assert_array_equal(fitted.predict_proba(make_rows().X), answers)
    assert verify(save(fitted, tmp_path / "v1")).passed


def test_only_the_released_numbers_are_saved(tmp_path: Path) -> None:
    """Overwritten weights are not the mechanism's output, so its epsilon does not apply to them."""
    fitted = fit(budget=(budget := make_budget(tmp_path / "data/lesions")))
    (entry,) = Ledger.of_dataset(tmp_path / "data", "lesions").read_entries()
    assert entry.digest == fitted.fit_.digest != ""
    assert budget.compute_spent().entries == 1
    for values in (fitted.coef_, fitted.intercept_):
        with pytest.raises(ValueError, match="read-only"):
            values[:] = 0
        assert not np.shares_memory(values, fitted.fit_.heads.weights)
    fitted.coef_ = fitted.coef_ * 0
    fitted.classes_[0] = "Jane Roe"
    folder = save(fitted, tmp_path / "v1")
    assert verify(folder).passed
    assert "Jane Roe" not in (folder / "bundle.json").read_text()
    for copied in (fitted, pickle.loads(pickle.dumps(fitted))):
        copied.fit_.heads.weights[0, 0, 0] += 1
        with pytest.raises(PrivacyError, match=r"fit_\.heads"):
            save(copied, tmp_path / "v2")
    other = fit(head={"head": "least_squares"})
    (transform,) = other.fit_.heads.transforms
    next(iter(transform.arrays.values())).add_(1)
    with pytest.raises(PrivacyError, match="fit_.heads"):
        save(other, tmp_path / "v2")
    assert not (tmp_path / "v2").exists()


@pytest.mark.parametrize(
    ("name", "values", "error", "key"),
    [
        ("v1", {"each_by_itself": False}, PrivacyError, "each_by_itself"),
        ("v1", {"each_by_itself": 1}, PrivacyError, "each_by_itself"),
        ("v1", {"dataset": "My Data"}, ConfigError, "dataset 'My Data'"),
        ("V 1", {}, ConfigError, "folder 'V 1'"),
        ("v1", {"weights_sha256": "abc"}, ConfigError, "weights_sha256"),
        ("v1", {"model": ""}, ConfigError, "model"),
        ("v1", {"model": "/home/me/model.pt"}, DataError, "path"),
        ("v1", {"sign_key": "none.pem", "card": {"colour": "red"}}, ConfigError, "none.pem"),
        ("v1", {"card": {"colour": "red"}}, DpprobeError, "colour"),
        ("v1", {"card": {"contact": "/home/me"}}, DataError, "path"),
    ],
)
def test_unpublishable_fits_are_refused(
    name: str,
    values: dict[str, Any],
    error: type[Exception],
    key: str,
    bundle: tuple[PrivateClassifier, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(error, match=key):
        save(bundle[0], tmp_path / name, **values)
    monkeypatch.setattr("dpprobe.release.packing.make_page", raise_error)
    with pytest.raises(PrivacyError, match="no memory"):
        save(bundle[0], tmp_path / "v1")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "v1").mkdir()
    with refuses(ConfigError, tmp_path / "v1"):
        save(bundle[0], tmp_path / "v1")


def search(head: PrivateClassifier) -> PrivateClassifier:
    grid = {"head": [FAST, {**FAST, "steps": 8}]}
    found = GridSearchCV(head, grid, cv=KFold(2), error_score="raise").fit(*make_rows())
    return cast(PrivateClassifier, found.best_estimator_)


def take_one(head: PrivateClassifier, *, place: int) -> PrivateClassifier:
    return [clone(head).fit(*make_rows()) for _ in range(3)][place]


def cross_validate(head: PrivateClassifier) -> PrivateClassifier:
    cross_val_score(head, *make_rows(), cv=KFold(3), error_score="raise")
    return head.fit(*make_rows())


def copy_elsewhere(head: PrivateClassifier) -> PrivateClassifier:
    """Pickles the head: the copy of a budget in memory does not see later fits."""
    return cast(PrivateClassifier, pickle.loads(pickle.dumps(head.fit(*make_rows()))))


def fail_once(head: PrivateClassifier) -> PrivateClassifier:
    """Fits after a failed fit, which counts although its head was never seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.estimator.planned_fit.fit_heads", raise_error)
        with pytest.raises(PrivacyError):
            head.fit(*make_rows())
    return head.fit(*make_rows())


def raise_error(*_: Any, **__: Any) -> None:
    raise PrivacyError("no memory")


@pytest.mark.filterwarnings("ignore:fit number")
@pytest.mark.parametrize("kept", ["memory", "ledger"])
@pytest.mark.parametrize(
    ("choose", "fits"),
    [
        (search, 5),
        (partial(take_one, place=0), 3),
        (partial(take_one, place=-1), 3),
        (lambda head: head.fit(*make_rows()).fit(*make_rows()), 2),
        (cross_validate, 4),
        (copy_elsewhere, 1),
        (fail_once, 2),
    ],
)
def test_a_bundle_says_that_no_choice_among_fits_is_covered(
    choose: Callable[[PrivateClassifier], PrivateClassifier], fits: int, kept: str, tmp_path: Path
) -> None:
    budget = make_budget(tmp_path / "data/lesions" if kept == "ledger" else None, max_epsilon=10.0)
    chosen = choose(make_private(budget=budget, epsilon=0.2))
    folder = save(chosen, tmp_path / "chosen")
    statement = json.loads((folder / "privacy.json").read_text())
    assert statement["ledger"] == chosen.privacy_["ledger"]
    assert statement["ledger"]["releases"] == fits
    assert statement["ledger"]["epsilon"] == budget.compute_spent().epsilon
    assert statement["choice"] == chosen.privacy_["choice"] == fits_block(fits)
    assert (f"{fits - 1} other fit" in (folder / "README.md").read_text()) == (fits > 1)
    assert verify(folder).passed


def test_a_fit_keeps_its_spent_budget_after_its_ledger_is_deleted(tmp_path: Path) -> None:
    budget = make_budget(tmp_path / "data/lesions", max_epsilon=10.0)
    fitted, total = fit(budget=budget, epsilon=0.2, delta=1e-6), budget.compute_spent(1e-6)
    shutil.rmtree(tmp_path / "data")
    assert budget.compute_spent().entries == 0
    assert fitted.fit_.count_spent() == total
    assert total.entries == 1


def test_a_fit_counts_later_fits_after_another_was_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of fits is then equal, but not their total."""
    budget = make_budget(tmp_path / "data/lesions", max_epsilon=10.0)
    with monkeypatch.context() as patch:
        patch.setattr(planned_fit, "fit_heads", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit(budget=budget, epsilon=0.1)
    fitted = fit(budget=budget, epsilon=0.2)
    Ledger(tmp_path / "data/lesions/ledger.jsonl").abandon_entry(1, "died before its noise")
    fit(budget=budget, epsilon=2.0)
    now = budget.compute_spent()
    assert fitted.fit_.count_spent() == now
    assert now.epsilon > 2.0


def test_verification_fails_if_a_bundle_misstates_its_other_fits(tmp_path: Path) -> None:
    folder = save(fit(), tmp_path / "alone")
    statement = json.loads((folder / "privacy.json").read_text())
    for block in (fits_block(3), {"cells": 0, "epsilon": None, "uncovered": None}):
        (folder / "privacy.json").write_text(json.dumps(statement | {"choice": block}))
        checks = {check.name: check.passed for check in verify(folder).checks}
        assert checks["choice"] is False


def test_a_bundle_states_the_users_facts_about_the_model(tmp_path: Path) -> None:
    fitted = fit(head="prototypes")
    plain = json.loads((save(fitted, tmp_path / "plain") / "bundle.json").read_text())
    backbone = plain["backbone"]
    assert backbone["options"] == {
        "family": "external",
        "model": "clip-vit",
        "version": None,
        "weights_sha256": None,
        "vectors": None,
        "pretrained": True,
        "each_by_itself": True,
    }
    assert (backbone["name"], backbone["architecture"]) == ("vectors", "clip-vit")
    assert (backbone["trained"], backbone["weights_sha256"]) == (True, None)
    assert backbone["versions"] == {}
    assert (plain["name"], plain["study"], plain["dataset"]) == ("plain", "estimator", "lesions")
    assert plain["class_names"] == NAMES
    assert (plain["dimension"], plain["multi_label"]) == (6, False)
    assert (plain["head"]["method"], plain["head"]["link"]) == ("prototypes", "none")
    assert set(plain["card"].values()) == {None}
    more = {"version": "2", "weights_sha256": "ab" * 32, "pretrained": False}
    card = {"license": "MIT", "limits": "none", "contact": "a"}
    told = save(fitted, tmp_path / "told", dataset="skin_2", card=card, **more)
    facts = json.loads((told / "bundle.json").read_text())
    assert facts["backbone"]["options"].items() >= more.items()
    assert facts["backbone"]["pretrained_tag"] == "2"
    assert facts["backbone"]["trained"] is False
    assert facts["backbone"]["weights_sha256"] == "ab" * 32
    assert facts["card"] == card | {"intended_use": None}
    assert facts["dataset"] == "skin_2"


@pytest.mark.parametrize("unit", ["row", "patient"])
@pytest.mark.parametrize("make", [make_private, make_benchmark])
def test_a_statement_says_who_is_protected_at_what_price(unit: Any, make: Any) -> None:
    groups = [str(row // 2) for row in range(len(make_rows().y))] if unit == "patient" else None
    fitted = make(head=FAST, unit=unit).fit(*make_rows(), groups=groups)
    said = fitted.privacy_
    assert said["unit"] == unit
    assert said["n"] == fitted.plan_.n == len(make_rows().y) // (2 if groups else 1)
    assert (said["epsilon_target"], said["delta"]) == (1.0, fitted.plan_.delta)
    noise = fitted.plan_.mechanisms[0]
    exact = gaussian_epsilon(math.sqrt(noise.count) / noise.noise_multiplier, said["delta"])
    assert said["epsilon_realised"] == pytest.approx(exact, rel=2e-6)
    assert [item["count"] for item in said["mechanisms"]] == [noise.count]
    benchmark = make is make_benchmark
    assert said["mode"] == ("benchmark" if benchmark else "release")
    assert ("seeds" in said) == benchmark
    assert ("ledger" in said) == (not benchmark)
