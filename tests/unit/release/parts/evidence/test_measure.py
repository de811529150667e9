"""Audits as evidence in a release: which audit is chosen, and the sentences about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dpprobe.errors import PrivacyError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.parts.evidence.measure import Evidence, check_evidence, read_evidence
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.training.plan_file import plan_method
from tests.support.audit_records import MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.mechanisms import gaussians, made_plan
from tests.support.refusals import check_tokens, refuses
from tests.support.release_study import ROWS, release, study, write_features

EVIDENCE = {
    "audited": "2026-01-31",
    "code": "dpprobe 0.1.0, audit 1",
    "runs": 1000,
    "confidence": 0.95,
    "epsilon_lower": 0.71299,
    "caught_factor": 1.52,
    "probability": 0.95,
    "tests": 3,
}


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibration")


@pytest.fixture
def plan(tmp_path: Path, calibration: Path) -> Plan:
    target = Target(n=ROWS["train"], epsilon=2.0, delta=1e-4)
    return plan_method(study(tmp_path).methods["covariance"], target, cache=calibration)


def _audit(folder: Path, plan: Plan, **changes: Any) -> Path:
    path = write_audit(folder, membership=MEMBERSHIP, **changes)
    write_json(path, read_json(path) | {"plan": plan.to_dict()})
    return path


def test_only_a_white_box_audit_of_the_same_plan_is_evidence(tmp_path: Path, plan: Plan) -> None:
    """The evidence excludes attacks on real rows."""
    assert set(EVIDENCE) == set(Evidence.model_fields)
    assert read_evidence(_audit(tmp_path, plan), plan) == EVIDENCE
    assert read_evidence(_audit(tmp_path, plan, white_box=None), plan) is None
    path = _audit(tmp_path, plan)
    change: dict[str, Any]
    for change in (
        {"n": 301},
        {"delta": 1e-5},
        {"mechanisms": []},
        {"unit": "patient"},
        {"epsilon": 1.0},
        {"accountant": "rdp"},
    ):
        write_json(path, read_json(path) | {"plan": plan.to_dict() | change})
        evidence = read_evidence(path, plan)
        assert evidence == (EVIDENCE if "accountant" in change else None), change


def test_a_release_states_its_evidence_and_verifies(
    tmp_path: Path, plan: Plan, calibration: Path
) -> None:
    write_features(tmp_path)
    output = release(tmp_path, study(tmp_path), audit=_audit(tmp_path, plan), cache=calibration)
    assert read_json(output / "privacy.json")["evidence"] == EVIDENCE
    for name in ("README.md", "release.html"):
        text = " ".join((output / name).read_text(encoding="utf-8").split())
        check_tokens(text, 0.712, "95% confidence")
    assert verify_bundle(output).passed


@pytest.mark.parametrize("holds", [False, True])
def test_a_refuted_guarantee_stops_the_release(
    holds: bool, tmp_path: Path, plan: Plan, calibration: Path
) -> None:
    write_features(tmp_path)
    tests = [{"name": "releases", "p_value": 0.4}, {"name": "head", "p_value": 1e-9}]
    refuted = {**WHITE_BOX, "tests": tests, "holds": holds}
    with refuses(PrivacyError, "epsilon 2", "head", 0.712, 0.95):
        release(
            tmp_path,
            study(tmp_path),
            audit=_audit(tmp_path, plan, white_box=refuted),
            cache=calibration,
        )
    assert Ledger.of_dataset(tmp_path / "data", "toy").read_entries() == []
    assert not (tmp_path / "results/releases/first").exists()


MADE = made_plan([gaussians(8.0)], n=1000)


@pytest.mark.parametrize(("lower", "above"), [(0.71, False), (1.0, False), (1.00001, True)])
def test_a_bound_above_epsilon_is_stated_with_its_chance(lower: float, above: bool) -> None:
    evidence = EVIDENCE | {"epsilon_lower": lower, "confidence": 0.975}
    said, passed = check_evidence({"evidence": evidence}, MADE)
    assert passed
    assert ("2.5% of audits" in said) == (f"{lower:g}" in said) == above
    assert check_evidence({"evidence": None}, MADE)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"confidence": 1.0},
        {"confidence": 0.4},
        {"runs": 10**10},
        {"runs": 0},
        {"runs": 5.0},
        {"tests": 1001},
        {"tests": 0},
        {"epsilon_lower": -0.1},
        {"caught_factor": 1.0},
        {"probability": 1.0},
        {"audited": "2026-1-31"},
        {"code": "another 1"},
        {"more": 1},
    ],
    ids=str,
)
def test_evidence_that_no_audit_writes_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        check_evidence({"evidence": EVIDENCE | change}, MADE)
