"""Budgets shared by fits: threads, copies, processes, and their ledger."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpprobe.errors import BudgetError, ConfigError, PrivacyError
from dpprobe.estimator.budget import Budget
from dpprobe.privacy.accountants import gaussian_epsilon, gaussian_mu
from dpprobe.privacy.plan import Selection
from dpprobe.privacy.risk import Risk
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, Part
from dpprobe.release.ledger.ledger_limits import Limits
from dpprobe.release.ledger.ledger_units import Units
from dpprobe.study.reserved_names import LEDGER_FILE
from tests.support.classifiers import DELTA, make_budget, make_private, make_rows
from tests.support.mechanisms import gaussians
from tests.support.refusals import check_tokens
from tests.support.split_tables import write_tables


def make_booking(
    *, noise: float = 8.0, unit: str = "row", column: str | None = None, release: str = "fit"
) -> Booking:
    mechanisms = (gaussians(noise, name="sum"),)
    part = Part(side="train", mechanisms=mechanisms, epsilon=1.0, delta=DELTA)
    return Booking(
        release=release,
        study="estimator",
        unit=unit,
        split="all rows",
        parts=(part,),
        identity="0",
        column=column,
    )


ADVANTAGE = {"advantage": 0.1}


@pytest.fixture(params=["memory", "ledger"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "data/people"


@pytest.fixture
def budget(place: Path | None) -> Budget:
    return make_budget(place)


def test_fits_add_up_as_one_gaussian(budget: Budget) -> None:
    assert budget.compute_spent().entries == 0
    for number in (1, 2, 3):
        assert budget.book_fit(make_booking(noise=16.0)) == number
    spent = budget.compute_spent()
    exact = gaussian_epsilon(3**0.5 / 16, DELTA)
    assert (spent.entries, spent.exact) == (3, True)
    assert exact <= spent.epsilon <= exact * 1.00001
    assert budget.compute_spent(1e-2).epsilon < spent.epsilon


@pytest.mark.parametrize(
    ("limit", "noise", "fits"),
    [({"max_epsilon": 1.0}, 4.0, 1), ({"max_epsilon": None, "max_risk": ADVANTAGE}, 6.0, 2)],
)
def test_a_fit_beyond_the_limit_is_refused_and_not_booked(
    place: Path | None, limit: dict[str, Any], noise: float, fits: int
) -> None:
    """mu = 0.251 is an advantage of 0.1: two fits with noise 6 stay below, three do not."""
    budget = make_budget(place, **limit)
    for _ in range(fits):
        budget.book_fit(make_booking(noise=noise))
    before = budget.compute_spent()
    assert before.epsilon > 0.5
    for attempt in (budget.check_fit, budget.book_fit):
        with pytest.raises(BudgetError, match=rf"above {list(limit)[-1]}"):
            attempt(make_booking(noise=noise))
    budget.check_fit(make_booking(noise=60.0))
    assert budget.compute_spent() == before


@pytest.mark.parametrize(("unit", "column"), [("group", "patient"), ("image", None)])
def test_another_unit_of_privacy_is_refused(budget: Budget, unit: str, column: str | None) -> None:
    """Epsilons for a row and for a person cannot be added up."""
    budget.book_fit(make_booking(noise=60.0))
    for attempt in (budget.check_fit, budget.book_fit):
        with pytest.raises(PrivacyError, match="cannot be added up") as caught:
            attempt(make_booking(noise=60.0, unit=unit, column=column))
        assert not isinstance(caught.value, BudgetError)
    assert budget.compute_spent().entries == 1


def test_a_risk_adds_up_as_one_gaussian(place: Path | None) -> None:
    risky = make_budget(place, max_epsilon=None, max_risk=ADVANTAGE)
    assert (risky.compute_risk(), risky.compute_risk(at=0.01)) == (0, 0.01)
    for number in (1, 2):
        risky.book_fit(make_booking(noise=8.0))
        mu = math.sqrt(number) / 8
        assert risky.compute_risk() == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=3e-6)
        rate = norm.cdf(norm.ppf(0.01) + mu)
        assert rate <= risky.compute_risk(at=0.01) <= rate + 2e-6


@pytest.mark.parametrize("risk", [{"advantage": 0.1}, {"true_positives": 0.02, "at": 0.01}])
def test_a_fit_may_attain_the_whole_risk(risk: dict[str, float]) -> None:
    budget = make_budget(max_epsilon=None, max_risk=risk)
    mu = Risk.from_dict(risk).to_mu()
    budget.book_fit(make_booking(noise=1 / mu))
    with pytest.raises(BudgetError):
        budget.check_fit(make_booking(noise=1000.0))


def test_a_sampled_and_a_searched_fit_have_a_risk_as_well() -> None:
    budget = make_budget(max_epsilon=None, max_risk={"advantage": 0.5})
    sampled = replace(make_booking().parts[0].mechanisms[0], sample_rate=0.1, count=5)
    part = replace(make_booking().parts[0], mechanisms=(sampled,))
    budget.book_fit(replace(make_booking(), parts=(part,)))
    alone = budget.compute_risk()
    assert 0 < alone < 2 * norm.cdf(math.sqrt(5) / 8 / 2) - 1
    searched = replace(part, selection=Selection(mean=3.0, repeated=("sum",)))
    budget.book_fit(replace(make_booking(), parts=(searched,)))
    assert alone < budget.compute_risk() <= 0.5


def test_threads_share_it(budget: Budget) -> None:
    """Forty threads fit at once; only the fits within the limit are booked."""

    def book(_: int) -> bool:
        try:
            budget.book_fit(make_booking(noise=10.0))
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        booked = sum(pool.map(book, range(40)))
    spent = budget.compute_spent()
    assert spent.entries == booked
    assert spent.epsilon <= 1 < gaussian_epsilon((booked + 1) ** 0.5 / 10, DELTA)


def test_a_budget_in_memory_belongs_to_its_process() -> None:
    """Two copies of one list would each allow the whole limit."""
    budget, booking = make_budget(), make_booking(noise=60.0)
    budget.book_fit(booking)
    copied = pickle.loads(pickle.dumps(budget))
    assert copied.compute_spent() == budget.compute_spent()
    for attempt in (copied.check_fit, copied.book_fit, pickle.loads(pickle.dumps(copied)).book_fit):
        with pytest.raises(PrivacyError, match=r"memory of another process.*Budget\(FOLDER"):
            attempt(booking)

    def spend() -> None:
        try:
            budget.book_fit(booking)
        except PrivacyError:
            os._exit(17)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=spend)
    process.start()
    process.join()
    assert process.exitcode == 17
    assert budget.book_fit(booking) == 2


@pytest.mark.parametrize("limit", [{}, {"max_epsilon": None, "max_risk": ADVANTAGE}])
def test_copies_of_a_budget_share_the_ledger_of_a_folder_that_was_named(
    limit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = make_budget("data/people", **limit)
    monkeypatch.chdir("/")
    copied = pickle.loads(pickle.dumps(budget))
    assert repr(copied) == repr(budget)
    assert budget.book_fit(make_booking(noise=60.0)) == 1
    assert copied.book_fit(make_booking(noise=60.0)) == 2
    assert budget.compute_spent() == copied.compute_spent()
    budget.close_fit(1, "0" * 64)
    entries = Ledger(tmp_path / "data/people" / LEDGER_FILE).read_entries()
    assert [entry.state for entry in entries] == ["closed", "open"]
    assert len({entry.booking.release for entry in entries}) == 2


def book_release(data: Path, dataset: str, units: Units) -> None:
    booking = make_booking(noise=60.0, unit="image", release=f"of_{dataset}")
    limits = Limits(delta=DELTA, max_epsilon=1.0)
    Ledger.of_dataset(data, dataset).book_release(booking, limits, units=units)


def write_people(folder: Path, train: str, test: str, *, patients: str = "", **more: Any) -> Units:
    """Writes tables of an image per letter, with patients named after their image."""
    images = {"train": [*train], "test": [*test]}
    units = {split: [patients + each for each in letters] for split, letters in images.items()}
    write_tables(folder, images, units=units if patients else None, **more)
    return Units.of_tables(folder)


@pytest.mark.parametrize("verify", ["hash", "decode"])
def test_a_fit_is_compared_with_other_datasets(tmp_path: Path, verify: str) -> None:
    """Its folder's split tables have its units; a search decodes images only once."""
    book_release(tmp_path, "a", write_people(tmp_path / "a", "pqr", "s"))
    write_people(tmp_path / "b", "tpu", "v", verify=verify)
    fit = make_booking(noise=60.0, unit="image")
    with pytest.raises(PrivacyError) as caught:
        make_budget(tmp_path / "b").book_fit(fit)
    check_tokens(str(caught.value), "images of dataset b are also", "of_a", "Budget(", "'a'")
    with pytest.raises(PrivacyError, match="are also"):  # images cannot be declared different
        make_budget(tmp_path / "b", other_units_than=["a"]).book_fit(fit)
    assert make_budget(tmp_path / "b").compute_spent().entries == 0
    shared = make_budget(tmp_path / "b", same_units_as="a")
    planned = replace(fit, same_units_as=shared.join_declared(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.data.table.decode_image", pytest.fail)
        assert [shared.book_fit(planned) for _ in "ab"] == [1, 2]
    assert shared.compute_spent().entries == 3
    # The fit may read rows of both splits, so people may change sides.
    write_people(tmp_path / "b", "vtu", "p", verify=verify)
    assert shared.book_fit(planned) == 3
    (tmp_path / "b/dataset.json").unlink()  # the hashes remain
    for letter in "pv":
        with pytest.raises(PrivacyError, match="images of dataset c are also"):
            book_release(tmp_path, "c", write_people(tmp_path / "c", f"wx{letter}", "y"))


def test_names_of_a_fit_may_be_other_people(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book_release(tmp_path, "a", write_people(tmp_path / "a", "abc", "d", patients="p"))
    names = Units(names={"train": ["pc"]}, tables=None)
    with pytest.raises(PrivacyError, match="names of units or ids"):
        book_release(tmp_path, "e", names)
    folder = tmp_path / "b"
    images = {"train": ["i", "j", "k"], "test": ["l"]}
    write_tables(folder, images, units={"train": ["pa", "x", "y"], "test": ["z"]})
    fit = make_booking(noise=60.0, unit="image")
    with pytest.raises(PrivacyError, match=r"other_units_than=\['a'\] if different units"):
        make_budget(folder).book_fit(fit)
    assert make_budget(folder, other_units_than=["a"]).book_fit(fit) == 1
    (folder / "train.parquet").unlink()
    assert make_budget(folder).book_fit(fit) == 2
    check_tokens(caplog.text, folder, "missing or damaged", "not compared")


def test_datasets_of_a_budget_and_of_its_rows_agree() -> None:
    budget = make_budget(same_units_as="a")
    assert [budget.join_declared(name) for name in ("a", None)] == ["a", "a"]
    assert make_budget().join_declared("b") == "b"
    with pytest.raises(PrivacyError, match="same_units_as is a, but b"):
        budget.join_declared("b")
    for values in ({"other_units_than": "a"}, {"same_units_as": 1}, {"other_units_than": [1]}):
        with pytest.raises(ConfigError, match="a list of datasets' names"):
            make_budget(**values)


def test_fits_and_releases_of_a_study_share_a_ledger(tmp_path: Path) -> None:
    """For a dataset of the workflow, the budget includes its releases and other splits."""
    ledger = Ledger.of_dataset(tmp_path / "data", "people")
    release = make_booking(noise=4.0, unit="patient", column="patient_id", release="v1")
    ledger.book_release(release, Limits(delta=DELTA, max_epsilon=1.0))
    budget = make_budget(tmp_path / "data/people", column="patient_id")
    assert budget.compute_spent().entries == 1
    fit = make_booking(noise=4.0, unit="patient", column=budget.column)
    with pytest.raises(BudgetError, match="without this release"):
        budget.book_fit(fit)
    assert budget.book_fit(make_booking(noise=40.0, unit="patient", column=budget.column)) == 2


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_epsilon": 2}, "max_epsilon=2"),
        ({"max_epsilon": np.float32(0.7)}, "max_epsilon=0.7"),
        ({"max_risk": {"advantage": 0.25}}, "max_risk={'advantage': 0.25}"),
        (
            {"max_risk": {"true_positives": 0.2, "at": 0.01}},
            "max_risk={'true_positives': 0.2, 'at': 0.01}",
        ),
    ],
)
def test_a_limit_is_shown_as_written(limit: dict[str, Any], said: str, tmp_path: Path) -> None:
    budget = Budget(delta=1e-5, **limit)
    assert budget.describe_limit() == said
    assert repr(budget) == f"Budget({said}, delta=1e-05)"
    kept = Budget(tmp_path / "data", delta=1e-5, **limit)
    assert repr(kept) == f"Budget({str(tmp_path / 'data')!r}, {said}, delta=1e-05)"
    assert not (tmp_path / "data").exists(), "nothing is written before a fit"


@pytest.mark.parametrize(
    ("limit", "error", "fault"),
    [
        ({}, PrivacyError, "exactly one limit"),
        ({"max_epsilon": 1, "max_risk": {}}, PrivacyError, "exactly one limit"),
        ({"max_epsilon": -1}, PrivacyError, "max_epsilon -1: must be a positive number"),
        ({"max_epsilon": 0}, PrivacyError, "max_epsilon 0: must be a positive number"),
        ({"max_epsilon": math.inf}, PrivacyError, "max_epsilon inf: must be a positive number"),
        ({"max_epsilon": math.nan}, ConfigError, "max_epsilon nan: pass one number"),
        ({"max_epsilon": "1"}, ConfigError, "max_epsilon '1': pass one number"),
        ({"max_risk": 0.1}, ConfigError, r"max_risk 0\.1: pass a mapping"),
        ({"max_epsilon": 1, "delta": 0}, PrivacyError, r"delta 0\.0: outside"),
        ({"max_epsilon": 1, "delta": 1}, PrivacyError, r"delta 1\.0: outside"),
        ({"max_epsilon": 1, "delta": "x"}, ConfigError, "delta 'x': pass one number"),
    ],
    ids=str,
)
def test_a_budget_without_a_finite_limit_is_refused(
    limit: dict[str, Any], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        Budget(**{"delta": DELTA} | limit)


def test_fits_on_one_budget_add_up_and_stop_at_its_limit(place: Path | None) -> None:
    """Fits of epsilon 0.3 add up as Gaussians; statements of the first fit include later fits."""
    budget = make_budget(place, max_epsilon=0.5)
    groups = [f"p{row // 3}" for row in range(60)]
    X, y = make_rows(rows=60)
    heads = [make_private(epsilon=0.3, budget=budget, unit="group") for _ in range(4)]
    heads[0].fit(X, y, groups=groups)
    mu = gaussian_mu(heads[0].plan_.mechanisms)
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(0.3, rel=1e-4)
    total = gaussian_epsilon(mu * math.sqrt(2), DELTA)
    said = f"fit number 2 on this budget: all fits together cost epsilon {total:.4f}"
    with pytest.warns(UserWarning, match=said):
        heads[1].fit(X, y, groups=groups)
    third = gaussian_epsilon(mu * math.sqrt(3), DELTA)
    assert total < 0.5 < third
    for head in heads[2:]:
        with pytest.raises(BudgetError, match="Every fit spends budget"):
            head.fit(X, y, groups=groups)
        assert not hasattr(head, "fit_")
    for delta in (None, 1e-6, 0.01):
        exact = gaussian_epsilon(mu * math.sqrt(2), delta or DELTA)
        assert budget.compute_spent(delta).epsilon == pytest.approx(exact, rel=2e-5)
    for number, head in enumerate(heads[:2], start=1):
        assert head.fit_.count_spent() == budget.compute_spent()
        ledger = head.privacy_["ledger"]
        assert (ledger["entry"], ledger["releases"]) == (number, 2)
        assert ledger["epsilon"] == budget.compute_spent().epsilon
        assert head.privacy_["choice"]["other_fits"] == 1
