"""Few-shot linear probes: logistic regression on N training images per class. Not private.

A probe shows how few images per class suffice, without privacy, for the accuracy of a private head.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from dpprobe.analyses.baseline_record import FEW_SHOT
from dpprobe.data.options import Headline
from dpprobe.devices import limit_threads, resolve_device
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.json_files import write_record
from dpprobe.files.table_files import write_table
from dpprobe.heads import nonprivate
from dpprobe.heads.logistic_regression import Objective
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.results import metrics, uncertainty
from dpprobe.results.unit_counts import count_units, unit_codes
from dpprobe.study.study import Study
from dpprobe.training.fit_inputs import choose_headline, read_labels

logger = logging.getLogger("dpprobe")

BLOCK_ROWS = 4096
# The fewest images per class with which some can be held out to choose a penalty.
FEWEST_TO_CHOOSE = 4
FEW_PENALTY = 0.1
NOTE = (
    "Not private: logistic regression is trained on the exact training rows, which also centre "
    "and scale its features. If rows may have several labels, the sample has as many rows without "
    "any label as rows of each label. Intervals: Student's t over random samples of the rows; for "
    "full, over test rows."
)
PATIENTS_NOTE = (
    " N counts patients. One random image per class or label is used of each patient. Each "
    "patient counts once in training and test: each image of a patient with m images has weight 1 "
    "/ m. Intervals over test rows are over patients."
)
Shots = int | Literal["full"]
SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        ("backbone", pa.string()),
        ("shots", pa.int64()),  # N; null for the whole split
        ("seed_index", pa.int64()),
        ("train_rows", pa.int64()),
        ("train_units", pa.int64()),  # number of patients; null if the dataset does not name them
        ("penalty", pa.float64()),
        *((name, pa.float64()) for name in metrics.SCALAR_METRICS),
    ]
)


def probe_few_shot(
    train: Path,
    test: Path,
    *,
    rows: Path,
    record: Path,
    options: Mapping[str, Any],
    metric: Headline | None,
    seed: int,
    memory_mb: int,
    dataset: str,
    backbone: str,
    threads: int,
    study: Study,
) -> None:
    """Trains and tests a probe for each N and each random sample.

    The samples of one seed are nested: a class's images for N = 2 include its image for N = 1. In
    each fit, even on the whole split, each of a patient's m images has weight 1 / m.

    Args:
      rows: the path of a parquet file with one row per probe.
      record: the path of a JSON file with mean and interval for each N.

    Raises:
      DataError: if the headline metric is not defined on the test rows.
    """
    limit_threads(threads)
    trained, tested = (FeatureStore(path).leave_out_nulls() for path in (train, test))
    shown = choose_headline(tested, metric)
    place = {"dataset": dataset, "backbone": backbone}
    identity = {**place, "few_shot": seed, "train": trained.fingerprint}
    seeds = [cell_seed(identity, index) for index in range(options["seeds"])]
    device = resolve_device(study.device)
    probe = _Probe(
        (trained, tested), seeds=seeds, study_seed=seed, memory_mb=memory_mb, device=device
    )
    results, records = [], []
    for count in options["shots"]:
        draws, result = probe.run_shots(count)
        if shown not in result["summary"]:
            raise DataError(f"{test}: {metrics.NO_AUC}")
        logger.info(
            "few-shot: %s: %s %.2f %%", count, shown, 100 * result["summary"][shown]["mean"]
        )
        results.append(result)
        records += [{**draw, **place} for draw in draws]
    write_table(rows, pa.Table.from_pylist(records, schema=SCHEMA))
    write_record(
        record,
        {
            **FEW_SHOT,
            **place,
            "private": False,
            "note": probe.note,
            "headline": shown,
            "multi_label": tested.multi_label,
            "class_names": list(tested.class_names),
            "rows": {"train": trained.rows, "test": tested.rows},
            "units": probe.patients,
            "features": {"train": trained.fingerprint, "test": tested.fingerprint},
            "results": results,
        },
        rows,
    )


def draw_shots(
    labels: np.ndarray, count: int, seed: int, units: np.ndarray | None = None
) -> np.ndarray:
    """Draws `count` rows of each label, or all rows of a rarer label; returns sorted row numbers.

    Args:
      labels: [n] integers, or [n, K] of 0 and 1. If labels are [n, K], `count` rows without any
        label are drawn as negatives. A row that is drawn for two labels counts once.
      units: int64 [n], the unit of each row. With `units`, `count` units of each label are drawn
        uniformly, with one row of the label per unit. A unit may be drawn for two labels.
    """
    generator = open_stream(seed, "few_shot")
    groups = (
        [np.flatnonzero(column) for column in (*labels.T, ~labels.any(axis=1))]
        if labels.ndim == 2
        else [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    )
    # All rows are permuted, so that a seed's larger samples contain the seed's smaller samples.
    orders = [generator.permutation(rows) for rows in groups]
    if units is not None:
        orders = [_one_of_each(rows, units, generator) for rows in orders]
    return np.unique(np.concatenate([rows[:count] for rows in orders]))


def _one_of_each(rows: np.ndarray, units: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Returns the first row of each unit, in a random order of the units."""
    _, first = np.unique(units[rows], return_index=True)
    return np.asarray(rows[generator.permutation(first)])


class _Probe:
    """Fits heads on parts of the training examples, and scores all test examples."""

    def __init__(
        self,
        stores: tuple[FeatureStore, FeatureStore],
        *,
        seeds: Sequence[int],
        study_seed: int,
        memory_mb: int,
        device: str,
    ) -> None:
        self._seeds, self._study_seed, self._device = seeds, study_seed, device
        self._train, self._test = stores
        self._train_labels, self._test_labels = map(read_labels, stores)
        self._options = nonprivate.Options()
        self._link: metrics.Link = self._options.link_on(self._train.multi_label)
        # Features of more than `memory_mb` are streamed from disk.
        self._train_rows, self._test_rows = (
            store.read() if 4 * store.rows * store.dimension <= memory_mb * 10**6 else None
            for store in stores
        )
        self._first: metrics.Evaluation | None = None
        self._train_units, self._test_units = (unit_codes(store.units) for store in stores)

    @property
    def note(self) -> str:
        return NOTE + (PATIENTS_NOTE if self._test_units is not None else "")

    @property
    def patients(self) -> dict[str, int | None] | None:
        """The number of patients in each split; None if the dataset does not name patients."""
        if self._train_units is None or self._test_units is None:
            return None
        return {"train": count_units(self._train_units), "test": count_units(self._test_units)}

    def run_shots(self, count: Shots) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns the probes of one N, as rows of the table, and the record's entry for N."""
        shots = None if count == "full" else count
        draws = self.run_draws(count)
        sizes = {name: [draw[name] for draw in draws] for name in ("train_rows", "train_units")}
        summary = self.summarise_draws(draws)
        rows = [{**draw, "shots": shots, "seed_index": i} for i, draw in enumerate(draws)]
        return rows, {"shots": shots, "seeds": len(draws), **sizes, "summary": summary}

    def run_draws(self, count: Shots) -> list[dict[str, Any]]:
        """Returns metrics, rows and penalty of each random sample, or of the whole split."""
        records: list[dict[str, Any]] = []
        for seed in self._seeds if count != "full" else self._seeds[:1]:
            rows = self._choose_rows(count, seed)
            with torch.inference_mode():
                weights, penalty = self._fit_probe(self._training_set(rows), count)
                scores = self._score_test_rows(weights)
            evaluation = metrics.Evaluation(
                scores,
                self._test_labels,
                link=self._link,
                accepted=self._test.accepted,
                units=self._test_units,
            )
            self._first = self._first if records else evaluation
            tested = evaluation.compute_metrics()
            drawn = None if self._train_units is None else self._train_units[rows]
            counted = {"train_rows": len(rows), "train_units": count_units(drawn)}
            records.append(tested | counted | {"penalty": penalty})
        return records

    def summarise_draws(self, draws: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Computes means and intervals of the results of the latest call of `run_draws`."""
        assert self._first is not None
        return uncertainty.summarise_records(draws, self._first, seed=self._study_seed)

    def _choose_rows(self, count: Shots, seed: int) -> np.ndarray:
        """Returns a sample's rows, sorted so that each fold (every third row) has all classes."""
        if count == "full":
            return np.arange(self._train.rows)
        rows = draw_shots(self._train_labels, count, seed, self._train_units)
        if self._train_labels.ndim == 2:
            return rows
        return np.asarray(rows[np.argsort(self._train_labels[rows], kind="stable")])

    def _training_set(self, rows: np.ndarray) -> TrainingSet:
        features: Any = self._train
        if self._train_rows is not None:
            features = torch.from_numpy(self._train_rows[rows]).to(self._device)
        elif len(rows) < self._train.rows:
            order = np.argsort(rows)
            drawn = np.empty((len(rows), self._train.dimension), dtype=np.float32)
            drawn[order] = self._train.read_rows(rows[order])
            features = torch.from_numpy(drawn).to(self._device)
        return TrainingSet(
            features,
            torch.from_numpy(self._train_labels[rows]),
            num_classes=self._train.num_classes,
            units=None
            if self._train_units is None
            else Units.number_units([str(unit) for unit in self._train_units[rows]]),
            device=self._device,
        )

    def _fit_probe(self, data: TrainingSet, count: Shots) -> tuple[np.ndarray, float]:
        """Returns weights [K, d + 1] for unnormalised features, and the penalty."""
        rows = Rows(data, Transform(NoNormalisation()))
        objective = Objective(rows, one_scale=count != "full")
        few = count != "full" and count < FEWEST_TO_CHOOSE
        penalty = FEW_PENALTY if few else nonprivate.choose_penalty(objective, self._options)
        start = objective.zero_parameters()
        stopping = self._options.stopping
        solution = objective.find_minimum(objective.everyone, penalty, start, stopping)
        return objective.raw_weights(solution), penalty

    def _score_test_rows(self, weights: np.ndarray) -> np.ndarray:
        head = torch.from_numpy(weights.astype(np.float32)).to(self._device)
        blocks: Iterable[tuple[int, np.ndarray]] = self._test.read_blocks(BLOCK_ROWS)
        if self._test_rows is not None:
            blocks = [(0, self._test_rows)]
        return np.concatenate(
            [
                torch.addmm(head[:, -1], torch.from_numpy(block).to(self._device), head[:, :-1].T)
                .cpu()
                .numpy()
                for _, block in blocks
            ]
        )
