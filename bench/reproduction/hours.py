"""Hours of runs that were not made: images by a rate at which a network passes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpprobe.errors import ConfigError, DataError
from dpprobe.exhibits.published import Number, Published
from dpprobe.study import catalog
from reproduction.compare import published_rows
from reproduction.facts import FILE, Cost, Facts, Rate
from reproduction.record import MeasuredRate


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The images of one run of a network on a dataset, and their rate.

    Attributes:
      images: that pass through the network.
      images_a_second: of one unit of the rate's device.
    """

    cost: Cost
    rate: Rate
    images: float
    images_a_second: float

    @property
    def hours(self) -> float:
        """Hours of one unit."""
        return self.images / self.images_a_second / 3600


def estimate(
    cost: Cost,
    number: Number,
    *,
    facts: Facts,
    published: Published,
    measured: Mapping[str, MeasuredRate],
) -> Estimate:
    """Estimates what a run for a published number takes.

    Raises:
      ConfigError: when the dataset's size or the rate's published place is not known.
      DataError: when the record has no such measured rate.
    """
    rate = facts.rates[cost.rate]
    return Estimate(
        cost=cost,
        rate=rate,
        images=_images(cost, number),
        images_a_second=_images_a_second(cost.rate, rate, published, measured),
    )


def _images(cost: Cost, number: Number) -> float:
    rows = published_rows(number)
    if rows is None or number.dataset is None:
        raise ConfigError(
            f"{FILE}: {number.paper}, {number.row}: the catalog has no number of training images "
            f"of {number.dataset}; leave its costs out"
        )
    test = catalog.dataset_entry(number.dataset).sizes.test if cost.test else 0
    return cost.passes * rows + (test or 0)


def _images_a_second(
    name: str, rate: Rate, published: Published, measured: Mapping[str, MeasuredRate]
) -> float:
    if rate.published is None:
        if rate.measured is None or rate.measured not in measured:
            raise DataError(
                f"{FILE}: rates.{name}: nothing measured as {rate.measured!r} in the record; "
                "measure it, or leave the costs out"
            )
        return measured[rate.measured].images_a_second
    numbers = published.select_numbers(**rate.published.model_dump())
    if len(numbers) != 1 or numbers[0].metric != "throughput":
        raise ConfigError(f"{FILE}: rates.{name}: not the place of a published throughput")
    return numbers[0].value
