"""The record of simulated sites, as a typed object; not private."""

from __future__ import annotations

from typing import Final, Literal

from dpprobe.files.records import Record, RecordPart

# The titles of the compared heads, from the most to the least noise relative to the data.
HEADS: Final = {
    "alone": "one site alone",
    "averaged": "average of heads",
    "together": "secure sums",
    "pooled": "pooled data",
}


class Estimate(RecordPart):
    """A mean over seeds, with its 95% interval over seeds and test examples or patients."""

    mean: float
    low: float
    high: float


class SitesCell(RecordPart):
    """The heads of one split, number of sites and budget.

    Attributes:
      smallest, largest: units of privacy of the smallest and largest site, over all seeds.
      alone: mean metric of the sites that can train a head; None if no site can.
      worst, best: the lowest and highest metric of a site that trains alone, as means over seeds.
      averaged: metric of the mean of all sites' scores. Without normalisation statistics, the mean
        of scores is the score of the head with mean weights.
      together: the metric of secure sums with shared noise, which do not depend on the split.
      pooled: the metric of a head trained on all sites' data.
      untrained: number of sites, over all seeds, that cannot train a head.
      reason: why the first site without a head cannot train a head; empty if every site can.
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
