"""Hours: images by a rate that was published or measured, never by another."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import ConfigError, DataError
from dpprobe.exhibits import published
from reproduction.facts import Cost
from reproduction.hours import Estimate, estimate
from reproduction.record import MeasuredRate
from tests.support.reproduction import known, printed

PUBLISHED_RATE = {"paper": "mehta_2022", "table": "8", "row": "ViT-B/16", "column": "full"}
MEASURED = {"bench/vit": MeasuredRate(images=8, core_seconds=4.0)}


def hours(rate: dict[str, Any], cost: dict[str, Any], **number: Any) -> Estimate:
    of = printed(**number)
    return estimate(
        Cost(rate="mine", **cost),
        of.numbers[0],
        facts=known(rates={"mine": {"what": "w", "unit": "CPU core", **rate}}),
        published=published.read_published(),
        measured=MEASURED,
    )


def test_a_rate_that_was_not_measured_is_refused() -> None:
    with pytest.raises(DataError, match="nothing measured as 'bench/gone'"):
        hours({"measured": "bench/gone"}, {"passes": 1})


@pytest.mark.parametrize("change", [{"row": "gone"}, {"column": "speed_up"}, {"table": "1"}])
def test_a_place_without_a_throughput_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="not the place of a published throughput"):
        hours({"published": PUBLISHED_RATE | change}, {"passes": 1})


def test_a_dataset_without_a_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="no number of training images of another"):
        hours({"measured": "bench/vit"}, {"passes": 1}, dataset="another")
