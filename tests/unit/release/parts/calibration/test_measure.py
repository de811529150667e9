"""The noisy counts of a calibration: sensitivity, releases, prices, and the whole bundle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import softmax

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.accountants import gaussian_mu
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.target import Target
from dpprobe.release import bundle
from dpprobe.release.counted_units import compose_test_price
from dpprobe.release.ledger import Ledger
from dpprobe.release.parts.calibration import measure as calibration_release
from dpprobe.release.parts.calibration.measure import (
    LABEL_COUNTS,
    PROBABILITY_COUNTS,
    TEMPERATURE,
    TOP_COUNTS,
    calibrate_head,
    calibration_mechanisms,
    check_calibration_size,
)
from dpprobe.release.parts.evaluation.measure import evaluation_mechanisms
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.results.unit_counts import row_weights
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from tests.support import release_study
from tests.support.release_study import release, study, write_features
from tests.support.shown_scores import head, of_test_rows

CLASSES = 3


def planned(folder: Path, n: int, epsilon: float, classes: int = CLASSES) -> Plan:
    return calibrate(
        calibration_mechanisms(classes=classes, multi_label=False),
        Target(n=n, epsilon=epsilon, delta=1e-5),
        cache=folder / "calibration",
    )


class Sums:
    """Collects the sums of a release without their noise; temperatures follow given answers."""

    def __init__(self, plan: Plan, answers: list[float] | None = None) -> None:
        self.plan, self.given = plan, answers
        self.sums: list[tuple[str, npt.NDArray[np.float64]]] = []

    def release_gaussian(self, name: str, total: GridSum) -> torch.Tensor:
        values = total.values
        self.sums.append((name, values.numpy().ravel()))
        if name == TEMPERATURE and self.given is not None:
            place = sum(each == TEMPERATURE for each, _ in self.sums) - 1
            return torch.full_like(values, self.given[place])
        return values


def sums_of(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], weights: npt.NDArray[Any], plan: Plan,
    answers: list[float],
) -> Sums:  # fmt: skip
    sums = Sums(plan, answers)
    calibration_release._release_tables(scores, labels, weights, sums)  # type: ignore[arg-type]
    return sums


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0] * 6])
@pytest.mark.parametrize("classes", [2, CLASSES])
def test_no_unit_moves_a_sum_by_more_than_its_sensitivity(
    tmp_path: Path, units: list[int], classes: int
) -> None:
    """Given the temperatures, which were released before: composition is adaptive."""
    generator, whose = np.random.default_rng(1), np.array(units)
    shares = row_weights(whose)
    weights = np.ones(6) if shares is None else shares
    plan = planned(tmp_path, n=len(np.unique(whose)) + 1000, epsilon=1.0, classes=classes)
    stated = {item.name: item.sensitivity for item in plan.mechanisms}
    worst = dict.fromkeys(stated, 0.0)
    for _ in range(60):
        scores = generator.normal(size=(6, classes)) * generator.choice([0.01, 1, 1e6])
        labels = generator.integers(0, classes, 6)
        if generator.random() < 0.3:  # equal rows: a unit's sum is then longest
            scores[:], labels[:] = scores[0], labels[0]
        answers = list(generator.normal(size=6))
        whole = sums_of(scores, labels, weights, plan, answers)
        for unit in np.unique(whose):
            without = np.where((whose != unit)[:, None], scores, math.nan)
            less = sums_of(without, labels, weights, plan, answers)
            for (name, values), (same, others) in zip(whole.sums, less.sums, strict=True):
                assert name == same
                worst[name] = max(worst[name], float(np.linalg.norm(values - others)))
    for name, change in worst.items():
        assert change <= stated[name]
        assert change > (0.5 if name == TEMPERATURE else 1 - 1e-6), "the bound is tight"


def test_a_row_without_finite_scores_counts_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, n=1000, epsilon=1.0)
    labels = np.zeros(4, np.int64)
    for bad in (math.nan, math.inf, -math.inf):
        scores = np.full((4, CLASSES), bad)
        for name, values in sums_of(scores, labels, np.ones(4), plan, [0.0] * 6).sums:
            assert not values.any(), name


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize(("classes", "offset"), [(2, 0.0), (2, 0.6), (CLASSES, 0.0)])
def test_a_head_s_planted_error_is_described(
    tmp_path: Path, classes: int, offset: float, scale: float
) -> None:
    """Without noise: `scale` times the scores, with the offset, are the logits of the truth."""
    generator, n = np.random.default_rng(5), 20_000
    logits = 2.0 * generator.normal(size=(n, classes))
    truth = softmax(logits + offset * np.eye(classes)[1], axis=1)
    labels = (truth.cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    plan = planned(tmp_path, n=n, epsilon=8.0, classes=classes)
    sums: Any = Sums(plan)
    noisy = calibration_release._release_tables(logits / scale, labels, np.ones(n), sums)
    described = calibration_release.describe_calibration(noisy, plan.mechanisms, n)
    assert described["scale"] == pytest.approx(scale, rel=0.1)
    assert described["offset"] == pytest.approx(offset, abs=0.05)


def test_noise_has_the_deviation_of_the_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path, n=1000, epsilon=1.0)
    scores, labels = np.zeros((4, CLASSES)), np.zeros(4, np.int64)
    drawn: dict[str, list[float]] = {LABEL_COUNTS: [], TOP_COUNTS: [], TEMPERATURE: []}
    for seed in range(150):
        releases = Releases(plan, (seed,), torch.device("cpu"), entropy=SEEDED)
        noisy = calibration_release._release_tables(scores, labels, np.zeros(4), releases)
        releases.check_counts()
        for name, values in drawn.items():
            values += np.ravel(noisy[name]).tolist()
    for item in plan.mechanisms:
        noise = np.array(drawn[item.name])
        wanted = item.noise_multiplier * item.sensitivity
        assert noise.std() == pytest.approx(wanted, rel=5 / math.sqrt(2 * len(noise)))
        assert abs(noise.mean()) < 5 * wanted / math.sqrt(len(noise))


def test_a_plan_for_something_else_is_refused(tmp_path: Path) -> None:
    rows = of_test_rows(np.zeros((1000, CLASSES)), np.zeros(1000, np.int64))
    with pytest.raises(PrivacyError, match="not for a calibration"):
        calibrate_head(
            head(CLASSES), rows, planned(tmp_path, 1000, 1.0, classes=2), SystemEntropy(),
            composition="",
        )  # fmt: skip
    fewer = of_test_rows(np.zeros((999, CLASSES)), np.zeros(999, np.int64))
    with pytest.raises(PrivacyError, match=r"1000.*has 999"):
        calibrate_head(
            head(CLASSES), fewer, planned(tmp_path, 1000, 1.0), SystemEntropy(), composition=""
        )  # fmt: skip
    with pytest.raises(ConfigError, match="one label per row"):
        calibration_mechanisms(classes=2, multi_label=True)


def test_too_few_units_are_refused_with_their_number(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"200 test units are too few: .* need 3\d\d at"):
        check_calibration_size(planned(tmp_path, 200, 1.0))
    check_calibration_size(planned(tmp_path, 400, 1.0))
    check_calibration_size(planned(tmp_path, 250, 1.0, classes=2))
    of_auc = calibrate(
        evaluation_mechanisms("auc", classes=2, multi_label=False),
        Target(n=400, epsilon=1.0, delta=1e-5),
        cache=tmp_path / "calibration",
    )
    with pytest.raises(PrivacyError, match="400 test units are too few: .* need 41[0-9] at"):
        check_calibration_size(of_auc)


def test_the_test_units_pay_for_everything_together(tmp_path: Path) -> None:
    two = planned(tmp_path, 1000, 2.0, classes=2)
    one = calibrate(
        evaluation_mechanisms("accuracy", classes=2, multi_label=False),
        Target(n=1000, epsilon=1.0, delta=1e-5),
        cache=tmp_path / "calibration",
    )
    both = compose_test_price(one, two)
    assert both is not None
    wanted = math.hypot(gaussian_mu(one.mechanisms), gaussian_mu(two.mechanisms))
    assert gaussian_mu(both.mechanisms) == pytest.approx(wanted)
    assert 2.0 < both.realised_epsilon < 3.0
    assert compose_test_price(None, two) is two
    assert compose_test_price(one, None) is one
    assert compose_test_price(None, None) is None


# whole releases

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "classes": (3, {"calibrate": {"epsilon": 2}}),
    "classes and accuracy": (3, {"calibrate": {"epsilon": 2}, "evaluate": {"epsilon": 1}}),
    "two": (2, {"calibrate": {"epsilon": 2}, "evaluate": {"epsilon": 1}}),
    "two of the AUC": (2, {"calibrate": {}, "evaluate": {"epsilon": 2, "metric": "auc"}}),
}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make_bundle(way: str) -> tuple[Path, Study]:
        classes, options = WAYS[way]
        monkeypatch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
        monkeypatch.setattr(release_study, "CLASSES", ("a", "b", "c")[:classes])
        write_features(tmp_path, shares=(1,) * classes)
        made = study(tmp_path, **options)
        return release(tmp_path, made), made

    return make_bundle


@pytest.mark.parametrize("way", WAYS)
def test_a_calibrated_release_is_whole_verified_and_booked(
    make: Any, tmp_path: Path, way: str
) -> None:
    output, made = make(way)
    report = verify_bundle(output)
    assert report.passed, [check for check in report.checks if check.passed is False]
    read = bundle.read_bundle(output)
    assert read.link == "softmax"
    calibrated = read.calibration
    assert calibrated is not None
    assert calibrated.scale > 0
    (entry,) = Ledger.of_dataset(tmp_path / "data", "toy").read_entries()
    tested = entry.booking.parts[1]
    blocks = [read.statement["calibration"], read.statement["evaluation"]]
    named = {item["name"] for each in blocks if each for item in each.get("mechanisms", ())}
    assert named == {item.name for item in tested.mechanisms}
    for document in (bundle.CARD_FILE, bundle.PAGE_FILE):
        text = " ".join((output / document).read_text().split())
        assert "How sure it is" in text
        assert "not for each class or group" in text or "a single class or group" in text
    again = release(tmp_path, made)
    assert bundle.bundle_digest(again) == bundle.bundle_digest(output), "a release is final"


def rewrite(output: Path, change: Any) -> None:
    """Edits the statement and all hashes, as somebody who cheats would."""
    path = output / bundle.STATEMENT_FILE
    values = read_json(path)
    change(values)
    write_json(path, values)
    bundle.write_sums(output)


@pytest.mark.parametrize("way", ["classes and accuracy", "two", "two of the AUC"])
@pytest.mark.parametrize(
    "what",
    [
        "scale", "sets", "threshold", "words", "counts", "epsilon", "delta", "n", "composition",
        "removed", "other test units",
    ],
)  # fmt: skip
def test_an_edited_calibration_is_noticed(make: Any, way: str, what: str) -> None:
    output, _ = make(way)

    def change(values: dict[str, Any]) -> None:
        block = values["calibration"]
        if what == "scale":
            block["scale"] *= 1.01
        elif what == "sets":
            block["sets"] = block["sets"][1:]
        elif what == "threshold":
            block["sets"][0]["threshold"] += 1e-3
        elif what == "words":  # equally long
            if "cut_offs" in block:
                block["cut_offs"][0]["wanted"] = "FDA cleared"
            else:
                block["composition"] = block["composition"].replace("nothing", "at most")
        elif what == "delta":
            block["delta"] = 1 / 700
        elif what == "n":
            block["n"] = 9000
        elif what == "counts":
            holder = block if "mechanisms" in block else values["evaluation"]
            table = holder.get("score_counts", {}).get("counts")
            table = table or holder.get(TOP_COUNTS) or holder[PROBABILITY_COUNTS]
            table[-1][-1] += 30.0
        elif what == "epsilon":
            block["epsilon"] = 1.0
        elif what == "composition":
            block["composition"] = "Nobody pays."
        elif what == "other test units":
            values["evaluation"]["n"] += 1
        else:
            del block["reliability"]

    rewrite(output, change)
    failed = {check.name for check in verify_bundle(output).checks if check.passed is False}
    assert "calibration" in failed


@pytest.mark.parametrize(
    ("way", "name", "change"),
    [
        ("two of the AUC", "evaluation", {"value": 0.7, "interval": [0.65, 0.75]}),
        # of the head, and of the calibration alone
        ("classes and accuracy", "ledger", {"epsilon": 2.0}),
        ("two", "ledger", {"epsilon": 2.0}),
    ],
)
def test_numbers_that_do_not_go_together_are_noticed(
    make: Any, way: str, name: str, change: dict[str, Any]
) -> None:
    output, _ = make(way)
    rewrite(output, lambda values: values[name].update(change))
    failed = {check.name for check in verify_bundle(output).checks if check.passed is False}
    assert name in failed


def test_the_study_s_accountant_does_not_matter(make: Any, tmp_path: Path) -> None:
    """Nothing samples the test units, so their price is exact."""
    _, made = make("two")
    place = tmp_path / "other"
    write_features(place, shares=(1, 1))
    changed = {"results_dir": str(place / "results"), "data_dir": str(place / "data")}
    made = made.model_copy(update={"accountant": "rdp", **changed})
    report = verify_bundle(release(place, made))
    assert report.passed, [check for check in report.checks if check.passed is False]


def test_options_that_make_no_sense_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"calibrate: has no epsilon; write `calibrate: "):
        check_study(study(tmp_path, calibrate={}))
    paid = {"calibrate": {"epsilon": 1}, "evaluate": {"epsilon": 1, "metric": "auc"}}
    with pytest.raises(ConfigError, match=r"uses too; write `calibrate: \{\}`"):
        check_study(study(tmp_path, **paid))


def test_a_release_without_calibration_says_nothing_about_it(tmp_path: Path) -> None:
    write_features(tmp_path)
    output = release(tmp_path, study(tmp_path, evaluate={"epsilon": 1}))
    read = bundle.read_bundle(output)
    assert "calibration" not in read.statement
    assert read.calibration is None
    assert "How sure it is" not in (output / bundle.CARD_FILE).read_text()
    assert json.loads((output / bundle.STATEMENT_FILE).read_text())["evaluation"]["n"] == 120
