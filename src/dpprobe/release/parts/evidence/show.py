"""Verifies and shows the audit of heads with the release's plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.analyses.audit.audit_record import at_least, power_in_words
from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.evidence.measure import Evidence
from dpprobe.release.parts.part import PartReader, Stated, Words
from dpprobe.release.stated_values import Values, require_true
from dpprobe.release.verification.checks import Checks


def check_evidence(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks that a stated audit does not refute the guarantee."""
    if values["evidence"] is None:
        return "no audit is stated", True
    evidence = Evidence.model_validate(values["evidence"])
    require_true(
        evidence.epsilon_lower <= plan.realised_epsilon,
        f"epsilon_lower {evidence.epsilon_lower:g} is above the stated epsilon",
    )
    return "the bundle states an audit, whose numbers cannot be checked from the bundle", True


def in_words(evidence: Mapping[str, Any] | None) -> str | None:
    """Describes the result of an audit in plain words; None without an audit."""
    if evidence is None:
        return None
    return (
        f"On {evidence['audited']} an audit attacked {evidence['runs']:,} other heads of the same "
        f"method and noise, trained on made-up rows. None of its {evidence['tests']} tests refuted "
        f"the promise. Its lower bound on epsilon is {at_least(evidence['epsilon_lower'])} at "
        f"{100 * evidence['confidence']:g}% confidence; it {power_in_words(evidence)}. A low bound "
        "is no certificate: the promise above rests on the mathematics."
    )


class Reader(PartReader):
    """Checks that a stated audit does not refute the guarantee."""

    def verify(self, checks: Checks, stated: Stated) -> bool | None:
        return checks.run_check(self.name, check_evidence, stated.values, stated.plan)

    def show(self, statement: Mapping[str, Any], words: Words) -> dict[str, Any]:  # noqa: ARG002
        return {"audited": in_words(statement["evidence"])}


READER = Reader("evidence")
