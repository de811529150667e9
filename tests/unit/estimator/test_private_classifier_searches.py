"""Fits started by others: clones, searches, cross-validation, workers; and a killed process."""

from __future__ import annotations

import copy
import signal
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score

from dpprobe.errors import BudgetError, PrivacyError
from dpprobe.estimator.private_classifier import PrivateClassifier
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.study.reserved_names import LEDGER_FILE
from tests.support.classifiers import DELTA, FAST, ROWS, make_budget, make_private, make_rows
from tests.support.programs import run_program

GRID = {"head": [FAST, {**FAST, "steps": 8}]}


@pytest.mark.parametrize("copied", [clone, copy.copy, copy.deepcopy])
def test_copies_of_a_classifier_share_its_budget(copied: Any) -> None:
    rows = make_rows()
    budget = make_budget()
    first = make_private(budget=budget)
    second = copied(first)
    first.fit(*rows)
    with pytest.raises(BudgetError):
        second.fit(*rows)
    assert second.budget is budget
    assert budget.compute_spent().entries == 1


@pytest.mark.parametrize("error_score", ["raise", np.nan])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")
def test_a_grid_search_stops_at_its_second_fit(error_score: Any) -> None:
    budget = make_budget()
    search = GridSearchCV(make_private(budget=budget), GRID, error_score=error_score, cv=KFold(3))
    with pytest.raises(BudgetError, match=r"head='tuned'"):
        search.fit(*make_rows())
    assert budget.compute_spent().entries == 1
    assert budget.compute_spent().epsilon <= 1


def test_cross_validation_has_one_score_and_says_why() -> None:
    budget = make_budget()
    with pytest.warns(FitFailedWarning, match=r"(?s)4 fits failed.*head='tuned'"):
        scores = cross_val_score(make_private(budget=budget), *make_rows(), cv=KFold(5))
    assert np.isfinite(scores).tolist() == [True, False, False, False, False]
    assert budget.compute_spent().entries == 1
    with pytest.raises(BudgetError):
        cross_val_score(make_private(budget=budget), *make_rows(), cv=KFold(5), error_score="raise")


@pytest.mark.filterwarnings("ignore:fit number")
def test_groups_pass_through_cross_validation() -> None:
    """The error without groups names `params`; with metadata routing, groups are routed."""
    groups = np.arange(ROWS) // 4
    budget = make_budget(max_epsilon=10.0)
    classifier = make_private(unit="group", budget=budget)
    score = partial(cross_val_score, cv=GroupKFold(2), error_score="raise")
    with pytest.raises(PrivacyError, match=r"cross_val_score params=\{'groups': ...\}"):
        score(classifier, *make_rows(), groups=groups)
    told = {"groups": groups}
    assert np.isfinite(score(classifier, *make_rows(), groups=groups, params=told)).all()
    with config_context(enable_metadata_routing=True):
        routed = clone(classifier).set_fit_request(groups=True)
        assert np.isfinite(score(routed, *make_rows(), params=told)).all()
    assert budget.compute_spent().entries == 4


def fit_once(classifier: PrivateClassifier, seed: int) -> str:
    try:
        classifier.fit(*make_rows(seed))
    except BudgetError:
        return "exceeded"
    except PrivacyError:
        return "refused"
    return "fitted"


@pytest.mark.filterwarnings("ignore:fit number")
@pytest.mark.parametrize(
    ("backend", "shared", "fitted"),
    [("loky", True, 2), ("loky", False, 0), ("threading", False, 2)],
)
def test_workers_together_stay_within_a_budget(
    backend: str, shared: bool, fitted: int, tmp_path: Path
) -> None:
    """Processes share only a ledger; threads also share a budget in memory."""
    budget = make_budget(tmp_path / "data/people" if shared else None, max_epsilon=1.5)
    classifier = make_private(budget=budget, public_steps=["joblib"])
    fits = [delayed(fit_once)(clone(classifier), seed) for seed in range(6)]
    made = Parallel(n_jobs=2, backend=backend)(fits)
    assert made.count("fitted") == budget.compute_spent().entries == fitted
    if fitted:
        assert made.count("exceeded") == 4
        assert 1 < budget.compute_spent().epsilon <= 1.5


def test_a_fit_is_on_the_disk_before_its_noise_is_drawn(tmp_path: Path) -> None:
    """The process is killed at the first use of noise, but the ledger has the entry."""
    program = f"""
        import os, signal
        from dpprobe.estimator import planned_fit
        from tests.support.classifiers import make_budget, make_private, make_rows

        class Killed:
            def __init__(self):
                os.kill(os.getpid(), signal.SIGKILL)

        planned_fit.SystemEntropy = Killed
        make_private(budget=make_budget({str(tmp_path / "data/people")!r})).fit(*make_rows())
    """
    finished = run_program(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=Path(__file__).parents[3], check=False
    )
    assert finished.returncode == -signal.SIGKILL, finished.stderr
    (entry,) = Ledger(tmp_path / "data/people" / LEDGER_FILE).read_entries()
    assert entry.state == "open"
    assert entry.booking.parts[0].delta == DELTA
    with pytest.raises(BudgetError):
        make_private(budget=make_budget(tmp_path / "data/people")).fit(*make_rows())


def test_a_fit_that_fails_after_it_is_booked_says_that_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PrivacyError("the disk is on fire")

    monkeypatch.setattr("dpprobe.estimator.planned_fit.fit_heads", fail)
    budget = make_budget()
    with pytest.raises(PrivacyError, match="Entry 1"):
        make_private(budget=budget).fit(*make_rows())
    assert budget.compute_spent().entries == 1
