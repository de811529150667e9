"""Writes made-up files of cells, in the format of a training job."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import save_file

from dpprobe.data.options import Headline, headline_metric
from dpprobe.files.json_files import write_json
from dpprobe.files.table_files import write_table
from dpprobe.heads.registry import method_options
from dpprobe.json_values import hash_value
from dpprobe.privacy.accountants import describe_accountant
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.risk import nominal_epsilon
from dpprobe.privacy.statement import Statement
from dpprobe.results import metrics
from dpprobe.results.halves import half_values
from dpprobe.results.summary import Grid, read_grid, summarise_cells
from dpprobe.results.uncertainty import summarise_records
from dpprobe.results.unit_counts import class_counts
from dpprobe.training.cell_contents import HISTORY

TEST_ROWS = 200
TRAIN_ROWS = 1000
DIMENSION = 64
STEPS = (10, 20, 30, 40)
# The summary of a metric without intervals.
BARE: dict[str, Any] = {"mean": 0.5, "std": None, "count": 3} | {
    f"{kind}{end}": None for kind in ("", "rows_", "both_") for end in ("low", "high", "interval")
}


def write_cell(
    root: Path,
    *,
    dataset: str = "digits",
    backbone: str = "pixels",
    method: str = "sgd",
    epsilon: str = "1",
    seeds: int = 3,
    quality: float = 2.0,
    class_names: Sequence[str] = ("zero", "one", "two", "three"),
    multi_label: bool = False,
    headline: Headline | None = None,
    patients: int | None = None,
    shares: Sequence[float] | None = None,
    rows: int = TEST_ROWS,
    note: str = "",
) -> Path:
    """Writes one cell's folder below `root` and returns its metrics.json.

    Scores are Gaussian noise, plus `quality` (reduced for a small epsilon) at the label. With
    `multi_label` each label is positive in three of ten rows, except a label named "absent". With
    `patients` the test rows are divided equally among so many patients. `shares` are the class
    frequencies in the test split (default: equal), which determine the default `headline`.
    `note` is part of the content hash, so another note makes a changed cell.
    """
    head = "nonprivate" if method == "nonprivate" else "sgd"
    folder = root / "cells" / dataset / backbone / method / f"eps-{epsilon}"
    identity = [dataset, backbone, method, epsilon]
    classes = len(class_names)
    generator = np.random.default_rng(int(hash_value(identity)[:8], 16))
    drawn = np.random.default_rng(int(hash_value(dataset)[:8], 16))  # shared by its cells
    labels = drawn.integers(classes, size=rows)
    if shares is not None:
        labels = drawn.choice(classes, size=rows, p=shares)
    present = np.eye(classes)[labels]
    if multi_label:
        present = (drawn.random((rows, classes)) < 0.3).astype(np.float64)
        present[:, [name == "absent" for name in class_names]] = 0.0
        labels = present.astype(np.uint8)
    link: metrics.Link = "sigmoid" if multi_label else "softmax"
    budget = nominal_epsilon(epsilon, 1e-5)
    signal = quality / (1 + 0.5 / budget)
    vary = head != "nonprivate"
    scores = generator.normal(size=(seeds if vary else 1, rows, classes))
    scores = np.broadcast_to(scores, (seeds, rows, classes)) + signal * present
    units = None if patients is None else np.arange(rows) % patients
    shown: Headline = headline or headline_metric(
        None,
        num_classes=classes,
        multi_label=multi_label,
        test_counts=() if shares is None else class_counts(labels, classes),
    )
    judged = [metrics.Evaluation(each, labels, link=link, units=units) for each in scores[:seeds]]
    records = [
        {"index": i, **each.compute_metrics(), "halves": half_values(shown, each)}
        for i, each in enumerate(judged)
    ]
    summary = summarise_records(records, judged[0])
    _write_history(folder / "history.parquet", records)
    write_predictions(folder / "predictions.parquet", scores, labels)
    private = math.isfinite(budget)
    write_json(folder / "privacy.json", state_cell(identity, seeds=seeds, private=private))
    weights = generator.normal(size=(seeds, classes, DIMENSION + 1)).astype(np.float32)
    save_file({"weights": weights}, folder / "heads.safetensors")
    record: dict[str, Any] = {
        "format": "dpprobe-cell",
        "format_version": 4,
        "cell": {"dataset": dataset, "backbone": backbone, "method": method, "epsilon": epsilon},
        "head": head,
        "private": private,
        "fingerprint": hash_value(identity),
        "content_hash": hash_value([identity, seeds, quality, note]),
        "delta": 1e-5 if private else None,
        "noise_multiplier": 1.23456789 if private else None,
        "realised_epsilon": 0.996 * budget if private else None,
        "options": {"head": head, "normalize": "none"}
        | ({} if head == "nonprivate" else {"batch_size": 32, "learning_rate": 0.1}),
        "rows": {"train": TRAIN_ROWS, "test": rows},
        "units": None if patients is None else {"train": 5 * patients, "test": patients},
        "unit": "image" if patients is None else "patient",
        "n": TRAIN_ROWS,
        "accountant": "pld" if private else None,
        "study_seed": 0,
        "dimension": DIMENSION,
        "class_names": list(class_names),
        "multi_label": multi_label,
        "headline": shown,
        "metric_named": headline is not None,
        "test_counts": class_counts(labels, classes),
        "constant_accuracy": metrics.constant_accuracy(labels, units=units),
        "auc_labels": len(metrics.ranked_labels(labels, classes)),
        "seeds": records,
        "summary": summary,
        "files": {},
        "seconds": 1.5,
    }
    write_json(folder / "metrics.json", record)
    return folder / "metrics.json"


def state_cell(identity: Sequence[str], *, seeds: int = 2, private: bool = True) -> dict[str, Any]:
    """Returns the statement of a cell of this name, with one head per seed."""
    _, backbone, method, epsilon = identity
    stated: dict[str, Any] = json.loads(_state_cell(private))
    stated["public_data"]["backbone"] = backbone
    values = {
        "method": method,
        "n": TRAIN_ROWS,
        "seeds": [hash_value([*identity, index])[:32] for index in range(seeds)],
    }
    if private:
        value = nominal_epsilon(epsilon, 1e-5)
        values |= {
            "epsilon_target": value,
            "epsilon_realised": 0.996 * value,
            "epsilon_all_heads": 2.0 * value,
        }
    return stated | values


@lru_cache
def _state_cell(private: bool) -> str:
    """States two heads of sampled gradients at epsilon 2, or of the non-private method."""
    gradients = Mechanism(
        name="gradients",
        sensitivity=1.2,
        noise_multiplier=1.07529,
        sample_rate=64 / 1400,
        count=44,
    )
    checks = {"rdp": 2.41104, "prv": 2.0231}
    priced: dict[str, Any] = {
        "mechanisms": (gradients,),
        "epsilon": 2.0,
        "realised_epsilon": 1.99873,
        "priced_by": describe_accountant([gradients], "pld"),
        "checks": {describe_accountant([gradients], name): price for name, price in checks.items()},
    }
    options = {"head": "sgd", "loss": "sigmoid", "batch_size": 64, "epochs": 2}
    method = method_options(options if private else {"head": "nonprivate"})
    statement = Statement(
        plan=Plan(
            n=1400,
            delta=1e-5,
            accountant="pld",
            **(priced if private else {"mechanisms": (), "epsilon": math.inf}),
        ),
        method="sgd" if private else "nonprivate",
        options=method.model_dump(mode="json"),
        mode="benchmark",
        seeds=[1, 2],
        public_data={
            "backbone": "pixels",
            "backbone_options": {
                "color": "gray",
                "family": "pixels",
                "mean": 0.0,
                "size": None,
                "std": 1.0,
            },
            "trained": False,
            "weights_sha256": None,
            "near_duplicate_check": "not_run",
        },
        epsilon_all_heads=3.0341 if private else math.inf,
        private_choices=method.private_choices,
        priced_normalisation=method.normalize.priced,
        engine_limits=method.engine_limits,
        copies={"rows": 0, "most": 1, "by": "bytes and pixels"},
    )
    return json.dumps(statement.to_dict(), allow_nan=False)


def write_study(
    root: Path,
    *,
    dataset: str = "digits",
    backbones: Sequence[str] = ("pixels", "scattering"),
    methods: Sequence[str] = ("sgd", "sgd_full", "nonprivate"),
    epsilons: Sequence[str] = ("0.5", "1", "2", "inf"),
    seeds: int = 3,
    **options: Any,
) -> list[Path]:
    """Writes the cells of a study on one dataset; the non-private method only has epsilon inf.

    Further options are passed to `write_cell`.
    """
    return [
        write_cell(
            root,
            dataset=dataset,
            backbone=backbone,
            method=method,
            epsilon=epsilon,
            seeds=seeds,
            quality=2.0 + 0.8 * b + 0.3 * m,
            **options,
        )
        for b, backbone in enumerate(backbones)
        for m, method in enumerate(methods)
        for epsilon in epsilons
        if method != "nonprivate" or epsilon == "inf"
    ]


def summarise(path: Path, *cells: Path) -> Path:
    """Writes the summary of cells as a study does; returns its path."""
    summarise_cells(cells, path, study="study")
    return path


def grid_of(folder: Path, *cells: Path) -> Grid:
    return read_grid([summarise(folder / "summary.parquet", *cells)])


def write_dataset_info(path: Path, *, note: str = "") -> Path:
    """Writes a dataset.json; another `note` makes another dataset."""
    splits = {
        name: {
            "rows": rows,
            "per_class": [rows // 4] * 4,
            "fingerprint": hash_value([name, note]),
            "sha256": hash_value([name, note, "file"]),
        }
        for name, rows in (("train", TRAIN_ROWS), ("test", TEST_ROWS))
    }
    write_json(
        path,
        {
            "format": "dpprobe-dataset",
            "format_version": 1,
            "source": {"source": "sklearn", "name": "digits"},
            "revision": None,
            "class_names": ["zero", "one", "two", "three"],
            "multi_label": False,
            "groups": [],
            "splits": splits,
            "fingerprint": hash_value(["digits", note]),
        },
    )
    return path


def _write_history(path: Path, records: Sequence[dict[str, Any]]) -> None:
    rows = [
        {
            "seed_index": record["index"],
            "step": step,
            "epoch": step / STEPS[-1],
            "train_loss": 2.0 / step,
            "test_accuracy": record["accuracy"] * step / STEPS[-1],
            "test_auc": record["auc"] * step / STEPS[-1] if "auc" in record else None,
        }
        for record in records
        for step in STEPS
    ]
    write_table(path, pa.Table.from_pylist(rows, schema=HISTORY))


def write_predictions(path: Path, scores: np.ndarray, labels: np.ndarray, **more: Any) -> None:
    """Writes the [seeds, rows, classes] scores of rows; `more` are further columns of the rows."""
    seeds, rows, classes = scores.shape
    flat = pa.array(scores.astype(np.float32).reshape(-1))
    every = np.concatenate([labels] * seeds)
    column = pa.array(every.tolist(), pa.list_(pa.int8())) if labels.ndim == 2 else pa.array(every)
    table = pa.table(
        {
            "seed_index": pa.array(np.repeat(np.arange(seeds, dtype=np.int32), rows)),
            "id": pa.array([f"test-{row}" for row in range(rows)] * seeds),
            "label": column,
            "scores": pa.FixedSizeListArray.from_arrays(flat, classes).cast(pa.list_(pa.float32())),
            **{name: pa.array(list(values) * seeds) for name, values in more.items()},
        }
    )
    write_table(path, table)
