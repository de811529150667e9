"""What the parts share that count test units: one head, and a private plan for these counts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpprobe.errors import PrivacyError
from dpprobe.heads.fitted import Heads
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.release.counted_units import open_releases, weights_of_rows
from dpprobe.release.parts.monitor.measure import monitor_mechanisms
from tests.support.shown_scores import head, of_test_rows


def test_other_plans_and_several_heads_are_refused(tmp_path: Path) -> None:
    def planned(*, unusual: bool, epsilon: float = 1.0) -> Plan:
        target = Target(n=100, epsilon=epsilon, delta=1e-5)
        return calibrate(monitor_mechanisms(unusual=unusual), target, cache=tmp_path)

    wanted, one = monitor_mechanisms(unusual=True), head(2)
    both = Heads(
        weights=np.concatenate([one.weights] * 2), seeds=(1, 2), transforms=one.transforms * 2,
        steps=0,
    )  # fmt: skip
    plan = planned(unusual=True)
    assert open_releases(one, plan, wanted, entropy=SEEDED, shared=None).plan is plan
    for heads, other, said in (
        (one, planned(unusual=False), "not for monitor_counts"),
        (one, planned(unusual=True, epsilon=math.inf), "not private, or not for monitor_counts"),
        (both, plan, "monitor_counts: 2 heads share one epsilon; pass one head"),
    ):
        with pytest.raises(PrivacyError, match=said):
            open_releases(heads, other, wanted, entropy=SEEDED, shared=None)
    fewer = of_test_rows(np.zeros((99, 2)), np.zeros(99, np.int64))
    with pytest.raises(PrivacyError, match=r"n = 100 test units .* has 99"):
        weights_of_rows(fewer, plan)
