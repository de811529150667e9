"""The record of simulated sites, as a typed object; not private. Imports nothing heavy."""

from __future__ import annotations

from typing import Final, Literal

from dpprobe.records import Part, Record

# The compared heads, from the most to the least noise for their data.
HEADS: Final = {
    "alone": "one site alone",
    "averaged": "average of heads",
    "together": "secure sums",
    "pooled": "pooled data",
}


class Estimate(Part):
    """A mean over seeds, with its 95% interval over seeds and test examples or patients."""

    mean: float
    low: float
    high: float


class SitesCell(Part):
    """The heads of one split, number of sites and budget.

    Attributes:
      smallest, largest: units of privacy of the smallest and largest site, over all seeds.
      alone: mean metric of the sites that can train a head; None if no site can. worst, best: range
        over these sites, as means over seeds.
      averaged: metric of the mean of these sites' scores, which is the head with mean weights
        unless heads release normalisation statistics.
      together: the metric of secure sums with shared noise, which do not depend on the split.
      pooled: the metric of a head on all data in one place.
      untrained: number of sites, over all seeds, without a head. reason: why the first has none.
      one_class: number of sites, over all seeds, with examples of a single class.
    """

    split: str
    sites: int
    epsilon: str
    smallest: int
    largest: int
    alone: Estimate | None
    worst: float | None
    best: float | None
    averaged: Estimate | None
    together: Estimate
    pooled: Estimate
    untrained: int
    reason: str
    one_class: int


class SitesRecord(Record):
    """Simulated sites of one (dataset, backbone)."""

    format: Literal["dpprobe-simulated-sites"] = "dpprobe-simulated-sites"
    format_version: Literal[1] = 1
    private: Literal[False] = False
    dataset: str
    backbone: str
    method: str
    metric: str
    unit: str
    n: int
    colluders: int
    seeds: int
    cells: tuple[SitesCell, ...]
