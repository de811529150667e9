"""A run estimates beforehand how long a long extraction takes."""

from __future__ import annotations

import pytest

from dpprobe.features.extraction_time import (
    format_duration,
)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (10, "1 minute"),
        (610, "10 minutes"),
        (5400, "90 minutes"),
        (5500, "2 hours"),
        (36 * 3600, "36 hours"),
        (60 * 3600, "2 days"),
    ],
)
def test_a_duration_has_the_unit_that_people_use(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told
