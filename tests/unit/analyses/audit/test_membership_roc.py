"""The figure of membership attacks: curves, the forbidden region, what stands beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.audit.show import membership_roc
from dpprobe.errors import DataError
from tests.support.audit_records import FPR, membership_record
from tests.support.figures import tick_texts


def drawn(membership: dict[str, Any]) -> Any:
    return membership_roc(membership, title="digits")


def test_what_the_plan_forbids_is_shaded_above_its_best_attack() -> None:
    (axes,) = drawn(membership_record()).axes
    forbidden = next(c for c in axes.collections if c.get_label() == "forbidden by epsilon")
    (path,) = forbidden.get_paths()
    for fpr in (2e-4, 0.01, 0.1):
        assert path.contains_point((fpr, min(1.0, 4.5 * fpr)))
        assert not path.contains_point((fpr, 3.0 * fpr)), "an attack that is allowed is shaded"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert {"0.01%", "1%", "100%"} <= set(tick_texts(axes))


def test_curves_are_the_records_and_begin_where_they_are_known() -> None:
    (axes,) = drawn(membership_record()).axes
    (line,) = (one for one in axes.lines if one.get_label().startswith("LiRA"))
    assert np.isnan(line.get_ydata()[0])
    np.testing.assert_allclose(line.get_ydata()[1:], np.minimum(2 * FPR[1:], 1))


def test_rows_that_were_not_attacked_are_refused() -> None:
    mislabelled = membership_record(groups=("mislabelled",))
    with pytest.raises(DataError, match="digits"):
        drawn(mislabelled)
