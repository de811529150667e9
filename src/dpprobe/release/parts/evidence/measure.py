"""Reads the audit that supports a release's guarantee: white-box, of heads with the same plan.

An audit's evidence reveals nothing about private examples. Audits run on synthetic rows, made from
public facts of the statement: n, the dimension, the number of classes and the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dpprobe.analyses.audit.audit_record import AuditRecord, at_least, power_in_words
from dpprobe.errors import PrivacyError
from dpprobe.privacy.plan import Plan, plan_identity
from dpprobe.release.parts.part import PartReader, PartSteps
from dpprobe.release.stated_values import Values
from dpprobe.release.transport import Block

logger = logging.getLogger("dpprobe")


class Evidence(BaseModel):
    """The numbers of an audit, from which a bundle's sentences on the audit are written.

    Noise too small by `caught_factor` would have been detected with `probability`; the factor is
    None if no error would have been detected. None of the `tests` refuted the guarantee.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    audited: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    code: str = Field(pattern=r"^dpprobe [0-9A-Za-z.+]{1,40}, audit \d{1,6}$")
    runs: int = Field(ge=1, le=10**9)
    confidence: float = Field(ge=0.5, lt=1)
    epsilon_lower: float = Field(ge=0)
    caught_factor: float | None = Field(gt=1)
    probability: float = Field(gt=0, lt=1)
    tests: int = Field(ge=1, le=1000)


def read_evidence(audit: Path, plan: Plan) -> dict[str, Any] | None:
    """Returns an audit's evidence; None for another plan; PrivacyError if a test refuted it."""
    record = AuditRecord.read(audit)
    box = record.white_box
    if box is None:
        return None
    # A release draws new noise with the distribution of the audited cell.
    audited, wanted = plan_identity(record.plan), plan_identity(plan.to_dict())
    if other := [key for key in wanted if key != "accountant" and audited[key] != wanted[key]]:
        logger.warning(
            "%s: the audited plan (%s) differs from the release's, so the audit is no evidence",
            audit,
            ", ".join(other),
        )
        return None
    if not box.holds or box.refuted_by:
        raise PrivacyError(
            f"{audit}: the audit refutes epsilon {plan.realised_epsilon:g} "
            f"({', '.join(box.refuted_by)}; lower bound {at_least(box.epsilon_lower)} at "
            f"confidence {box.confidence:g}); nothing is released. Look for an error in the code "
            "or the plan; by chance 1 of 1,000 audits refutes a correct epsilon"
        )
    return Evidence(
        audited=record.evidence.date,
        code=record.evidence.code,
        runs=box.runs,
        confidence=box.confidence,
        epsilon_lower=box.epsilon_lower,
        caught_factor=box.caught_factor,
        probability=box.probability,
        tests=len(box.tests),
    ).model_dump()


class Steps(PartSteps):
    def check(self) -> Block | None:
        return read_evidence(self.release.audit, self.planned.plan) if self.release.audit else None


# verification and words


def check_evidence(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks the form of a stated audit, and compares its bound with the guarantee.

    A lower bound above epsilon is no fault: for a correct release the lower bound exceeds epsilon
    with probability 1 - `confidence`.
    """
    if values["evidence"] is None:
        return "no audit is stated", True
    evidence = Evidence.model_validate(values["evidence"])
    said = "the bundle states an audit, whose numbers cannot be checked from the bundle"
    if evidence.epsilon_lower > plan.realised_epsilon:
        said += (
            f"; its lower bound {evidence.epsilon_lower:g} is above the stated epsilon, which "
            f"happens by chance in {100 * (1 - evidence.confidence):.3g}% of audits"
        )
    return said, True


def in_words(evidence: Mapping[str, Any] | None) -> str:
    """Describes the result of an audit in plain words, or states that the bundle has none."""
    if evidence is None:
        return "This bundle states no audit of heads of the same method and noise."
    return (
        f"On {evidence['audited']} an audit attacked {evidence['runs']:,} other heads of the same "
        f"method and noise, trained on made-up rows. None of its {evidence['tests']} tests refuted "
        f"the promise. Its lower bound on epsilon is {at_least(evidence['epsilon_lower'])} at "
        f"{100 * evidence['confidence']:g}% confidence; it {power_in_words(evidence)}. A low bound "
        "is no certificate: the promise above rests on the mathematics."
    )


READER = PartReader(
    "evidence", check_evidence, always=True, values=lambda block, *_: {"audited": in_words(block)}
)
