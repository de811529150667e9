"""The record of representation laws: the names of its files, and its JSON as a typed object.

This module imports nothing heavy, because each start of Snakemake imports it. A record is not
private: all its numbers are computed from training or test examples, without noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from dpprobe.files.records import Record, RecordPart

LAYERS = "layers"  # the folder of all records, <folder>/<dataset>/<backbone>/law.json
LAW_FILE = "law.json"
# Tables of a dataset: tables/<dataset>_<name>.csv and .md.
LAW_TABLES = ("representation_law", "accuracy_by_blocks")

Split = Literal["train", "test"]
# `residual` has the class number as regression target, as in the paper on representation laws.
Measure = Literal["separability", "fuzziness", "residual", "residual_one_hot"]
MEASURES: tuple[Measure, ...] = ("fuzziness", "separability", "residual", "residual_one_hot")
# Figures of a (dataset, backbone): figures/<dataset>/<name>_<backbone>.
MEASURE_FIGURES = tuple(f"law_{measure}" for measure in MEASURES)
# "constant": options as in the study; "searched": options chosen by a search without a price.
Setting = Literal["frozen", "constant", "searched"]


class FittedLaw(RecordPart):
    """A line through the logarithms of values by layer l: value_l = value_0 * rho^l.

    Attributes:
      rho: the factor per layer.
      low, high: rho's 95% interval, which is too narrow: errors of layers are not independent.
      r_squared: the line's share of the logarithms' variance; None for a variance of 0.
      layers: the number of fitted layers.
    """

    rho: float
    low: float
    high: float
    r_squared: float | None
    layers: int


class Series(RecordPart):
    """One measure of a network on one split, layer by layer, with its law.

    Attributes:
      values: values of layers 0, 1, ..., L; a value is None if it is 0/0 or a rounding error.
      shuffled: the values with shuffled labels, as a mean over shuffles.
      noise: the residual of pure noise of the layer's rank; only for residuals on fitted rows.
      law: the law of layers 1 to L; None if no law was fitted.
      fault: the reason why no law was fitted.
      null: the law of `shuffled`, which depends only on widths and ranks.
    """

    split: Split
    measure: Measure
    values: tuple[float | None, ...]
    shuffled: tuple[float | None, ...]
    noise: tuple[float, ...] | None = None
    law: FittedLaw | None
    fault: str | None = None
    null: FittedLaw | None


class LeftOut(RecordPart):
    """A layer that has no value of some measures, and the reason."""

    layer: int
    split: Split
    measures: tuple[Measure, ...]
    reason: str


class NetworkLaws(RecordPart):
    """The laws of one network.

    Attributes:
      method, epsilon: the cell whose first seed trained the network; None for the frozen network.
      tuned: the trained part, such as "head", "last 4 blocks" or "all".
      blocks: the number of tuned blocks; 0 for only the head, None for "all" and adapters.
      widths: the number of features of layers 0 to L.
    """

    method: str | None
    epsilon: str | None
    setting: Setting
    tuned: str | None
    blocks: int | None
    widths: tuple[int, ...]
    series: tuple[Series, ...]
    left_out: tuple[LeftOut, ...]

    def find_series(self, measure: Measure, split: Split) -> Series:
        return next(s for s in self.series if (s.measure, s.split) == (measure, split))


class LawRecord(Record):
    """The laws of the frozen network and of the tuned networks of one (dataset, backbone).

    Attributes:
      layers: L, the number of blocks; layer 0 is the input of the first block.
      token: the kind of a block's features: the class token, or the mean over tokens or positions.
      rcond: eigenvalues up to this share of the largest eigenvalue are omitted.
      fingerprint: the hash of all inputs that decide the values.
    """

    format: Literal["dpprobe-representation-law"] = "dpprobe-representation-law"
    format_version: Literal[2] = 2
    private: Literal[False] = False
    dataset: str
    backbone: str
    layers: int
    token: Literal["class", "pooled"]
    train_rows: int
    test_rows: int
    classes: int
    rcond: float
    shuffles: int
    seed: int
    networks: tuple[NetworkLaws, ...]
    fingerprint: str
    seconds: float

    @property
    def frozen(self) -> NetworkLaws:
        return next(network for network in self.networks if network.setting == "frozen")


def law_path(folder: Path | str, dataset: str, backbone: str) -> Path:
    return Path(folder, dataset, backbone, LAW_FILE)


def read_laws(paths: Iterable[Path]) -> list[LawRecord]:
    """Reads records, in the order of datasets and backbones."""
    records = map(LawRecord.read, paths)
    return sorted(records, key=lambda record: (record.dataset, record.backbone))
