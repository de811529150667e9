"""Options of audits: enough runs to refute a claim, and at most as many targets as heads."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpprobe.analyses.audit.options import AuditOptions, MembershipOptions


@given(runs=st.integers(10, 60), nines=st.integers(1, 12))
def test_runs_that_are_all_right_have_to_beat_guessing(runs: int, nines: int) -> None:
    """Guessing is right in all runs with probability 1/2^runs, which must be below 1 - c."""
    confidence = 1 - 10.0**-nines
    enough = 0.5**runs < 1 - confidence
    if enough:
        assert AuditOptions(runs=runs, confidence=confidence).runs == runs
        return
    with pytest.raises(ValidationError, match="too few to refute a claim") as error:
        AuditOptions(runs=runs, confidence=confidence)
    advised = int(re.search(r"use (\d+) or more", str(error.value))[1])  # type: ignore[index]
    assert 0.5**advised < 1 - confidence <= 0.5 ** (advised - 1)


def test_epsilons_and_runs_have_limits() -> None:
    assert AuditOptions(epsilons=[1.0, "inf"]).epsilons == ("1", "inf")
    with pytest.raises(ValidationError, match="greater than or equal to 10"):
        AuditOptions(runs=9)
    assert math.isclose(AuditOptions().confidence, 0.95)


def test_no_more_heads_are_attacked_than_trained() -> None:
    assert MembershipOptions(targets=8, shadows=8).targets == 8
    with pytest.raises(ValidationError, match="9 heads to attack.* only 8 shadows.* at most 8"):
        MembershipOptions(targets=9, shadows=8)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        MembershipOptions(targets=0)
