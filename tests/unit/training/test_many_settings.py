"""What training jobs write, choose, ask for and refuse, over many settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save

from dpprobe.artifacts import hash_value, read_json, sha256_file, write_json, write_record
from dpprobe.errors import DpprobeError, may_pass
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.training import (
    head_job,
)
from dpprobe.training.cell_contents import CellContents, merge_seeds
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import read_job_features
from dpprobe.training.public_file_check import PrivateData
from dpprobe.training.tasks import Job, OpenedJob, open_job
from tests.support.feature_stores import write_split
from tests.support.stored_records import answer_of, check_values
from tests.support.training_jobs import make_job, plan_job

FULL = {"head": "sgd", "batch_size": "full", "steps": 3}
METHODS: dict[str, dict[str, Any]] = {
    "full": FULL,
    "tuned": {"head": "tuned", "base": FULL, "search": {"learning_rate": [0.5, 2.0]}, "trials": 2},
    "priors": {"head": "momentum", "steps": 2, "class_priors": "released"},
    "sigmoid": FULL | {"loss": "sigmoid"},
    "second": {"head": "feature_covariance", "steps": 2},
    "auto": {"head": "auto"},
}
# Rows of train and test, classes, several labels, patients, the class that no test row has, and if
# rows have a group and labels that count as right.
SPLITS: Mapping[str, dict[str, Any]] = {
    "two": {"rows": (60, 24), "classes": 2},
    "eleven": {"rows": (110, 44), "classes": 11},
    "never": {"rows": (60, 9), "classes": 4, "absent": 2},
    "labels": {"rows": (60, 24), "classes": 3, "several": True},
    "no label": {"rows": (60, 24), "classes": 3, "several": True, "absent": 1},
    "patients": {"rows": (60, 24), "classes": 3, "patients": 3},
    "one row": {"rows": (60, 1), "classes": 2},
    "judged": {"rows": (60, 24), "classes": 3, "judged": True},
    "patients of labels": {"rows": (60, 24), "classes": 3, "patients": 4, "several": True},
    "train patients": {"rows": (60, 24), "classes": 3, "patients": 2},  # test rows name none
}


def _write_splits(
    folder: Path,
    *,
    rows: tuple[int, int],
    classes: int,
    several: bool = False,
    patients: int = 0,
    absent: int | None = None,
    judged: bool = False,
) -> None:
    for number, (split, count) in enumerate(zip(("train", "test"), rows, strict=True)):
        generator = np.random.default_rng(number)
        labels = np.sort(generator.integers(classes, size=(count, 2)).min(1))[::-1].copy()
        held = np.eye(classes, dtype=np.uint8)[labels] if several else labels.astype(np.int64)
        if several:
            held |= generator.random(held.shape) < 0.2
        if absent is not None and number:
            held[(slice(None), absent) if several else held == absent] = 0
        units = None  # every second patient has all images but one
        if patients and not (number and patients == 2):
            units = [
                f"{split} {row // patients} {row % (2 * patients) == 0}" for row in range(count)
            ]
        features = generator.normal(size=(count, 6))
        features[np.arange(count), labels % 6] += 2
        more: dict[str, Any] = {}
        if judged:
            right = [[], [2], [int(labels[0]), 1]]
            more["accepted"] = [right[row % 3] for row in range(count)]
            more["groups"] = {
                name: ["fm"[row % each > 2] for row in range(count)]
                for name, each in {"sex": 5, "a": 7}.items()
            }
        write_split(
            folder / split,
            features,
            held,
            units=units,
            class_names=tuple(f"class {k}" for k in range(classes)),
            shards=1 + 2 * (count > 20),
            copies={"image": {"rows": 2, "most": 3}} if split == "train" else None,
            **more,
        )


def _opened(folder: Path, job: Job, cache: Path, **places: Any) -> OpenedJob:
    inputs = FitInputs(FeatureStore(folder / "train/manifest.json"), job.unit)
    plans = plan_job(job, inputs.n, folder / "plans.json", cache)
    given: dict[str, Any] = {
        "train": folder / "train/manifest.json",
        "test": folder / "test/manifest.json",
        "plans": plans,
        "cells": folder / "cells",
        "overlap": None,
        "tables": None,
    }
    return open_job(job, **given | places)


def _made(task: Any, tested: int, indices: tuple[int, ...], seed: int = 0) -> CellContents:
    generator = np.random.default_rng(seed)
    classes, count = len(task.train.class_names), len(indices)
    arrays = {"class_priors": np.full((count, classes), 1 / classes, np.float32)}
    return CellContents(
        indices=indices,
        weights=generator.normal(size=(count, classes, 7)).astype(np.float32),
        arrays=arrays if task.options.releases_priors else {},
        scores=generator.normal(size=(count, tested, classes)).astype(np.float32),
        history=[
            {
                "seed_index": index,
                "step": step,
                "epoch": float(step),
                "train_loss": 1 / (1 + index),
                "test_accuracy": 0.1 * step,
                "test_auc": None,
            }
            for index in indices
            for step in (3, 1)
        ],
        chosen=tuple({"learning_rate": 0.5 + index} for index in indices)
        if task.options.head == "tuned"
        else (),
        seconds=1.25,
    )


CELLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((split, "full", {}) for split in SPLITS if "label" not in split),
    *((split, "sigmoid", {}) for split in SPLITS if "label" in split),
    *(("two", method, {}) for method in ("tuned", "priors", "second")),
    *(("two", method, {"epsilon": "inf"}) for method in ("full", "auto")),
    ("labels", "auto", {}),
    ("two", "full", {"seeds": 1, "metric": "auc", "study_seed": 5}),
    ("eleven", "full", {"seeds": 12, "metric": "macro_accuracy", "mode": "release"}),
    ("patients", "full", {"unit": "patient", "study_seed": 5}),
    *(("patients", "full", {"patients": {"images": most}}) for most in (3, 4)),
    ("patients", "full", {"patients": {"images": None}}),
    ("patients", "full", {"patients": {"images": 3}, "epsilon": "inf"}),
)
VARYING = ("fingerprint", "content_hash", "files", "options")


def _stage(
    folder: Path, split: str, method: str, changes: dict[str, Any], calibration: Path
) -> dict[str, Any]:
    """Stages, publishes and reads back a cell with made-up contents, without training."""
    _write_splits(folder, **SPLITS[split])
    job = make_job(
        **{"delta": 1e-3, "methods": {method: method_options(METHODS[method])}} | changes
    )
    overlap = None
    if split == "judged":
        of = {
            each: {"features": FeatureStore(folder / each / "manifest.json").fingerprint}
            for each in ("train", "test")
        }
        overlap = folder / "overlap.json"
        write_record(overlap, {"format": "dpprobe-overlap", "format_version": 2, **of, "near": 3})
    opened = _opened(folder, job, calibration, overlap=overlap)
    made = {path.name for path in folder.iterdir()} - {"overlap.json"}
    assert made == {"train", "test", "plans.json"}, "`auto` is calibrated beside other plans"
    task = opened.make_task(method, device="cpu")
    features = read_job_features(
        opened.inputs, opened.stores[1], device="cpu", memory_mb=9, headline=task.headline
    )
    seeds = tuple(range(job.seeds))
    contents = _made(task, SPLITS[split]["rows"][1], seeds)
    assert (task.find_finished(), task.find_reusable()) == (None, None)
    task.stage_cell(contents, features)
    assert task.find_finished() == task.staged
    task.publish_cell()
    assert task.find_finished() == task.published
    for other in (
        replace(task, seeds=job.seeds + 1),
        replace(task, metric_named=not job.metric),
        replace(task, headline="auc" if task.headline != "auc" else "accuracy"),
    ):
        assert not other.is_current()
        assert other.find_reusable() is not None
    assert replace(task, identity={}).find_reusable() is None
    stores = {"train": opened.stores[0].fingerprint, "test": opened.stores[1].fingerprint}
    assert {name: task.identity[name] for name in stores} == stores
    record = read_json(task.published / "metrics.json")
    halves = [seed.pop("halves") for seed in record["seeds"]]
    again = task.find_reusable()
    assert again is not None
    for name in ("weights", "scores"):
        np.testing.assert_array_equal(getattr(again, name), getattr(contents, name))
    kept = (again.indices, again.chosen, again.seconds)
    assert kept == (seeds, contents.chosen, record["seconds"] or 0.0)
    table = pq.read_table(task.published / "predictions.parquet")
    with safe_open(task.published / "heads.safetensors", framework="numpy") as stream:
        mark, tensors = json.loads(stream.metadata()["dpprobe"]), sorted(stream.keys())
    statement = {**task.statement, "seeds": len(set(task.statement.get("seeds", ())))}
    return {
        "record": {name: value for name, value in record.items() if name not in VARYING},
        "identity": sorted(task.identity) + [task.identity[k] for k in ("study_seed", "mode")],
        "predictions": {
            name: [str(table.schema.field(name).type), table[name].to_pylist()[::17]]
            for name in table.column_names
            if name != "scores"
        },
        "halves": [np.array(each, float) for each in halves],
        "tensors": tensors,
        "mark": mark["private_rows"],
        "history": pq.read_table(task.published / "history.parquet"),
        "statement": {
            name: statement[name]
            for name in (
                "seeds",
                "n",
                "private",
                "epsilon_all_heads",
                "patients",
                "public_data",
                "copies",
                "declared_public",
                "chosen_from",
                "mode",
                "promise",
            )
            if name in statement
        },
        "said": {name: len(each) for name, each in statement.items() if isinstance(each, list)},
    }


def test_cells_with_made_up_contents_are_as_stored(tmp_path: Path, calibration: Path) -> None:
    check_values(
        "cells_of_jobs",
        [_stage(tmp_path / str(number), *each, calibration) for number, each in enumerate(CELLS)],
        rel=1e-4,
    )


def test_seeds_of_several_runs_are_merged_in_order(tmp_path: Path, calibration: Path) -> None:
    _write_splits(tmp_path, **SPLITS["two"])
    job = make_job(delta=1e-3, methods={"tuned": method_options(METHODS["tuned"])})
    opened = _opened(tmp_path, job, calibration, tables=tmp_path / "data")
    private, task = vars(opened.private), opened.make_task("tuned", device="cpu")
    names = ("dataset", "backbone", "datasets", "results", "tables")
    wanted = ("toy", "none", ("toy",), tmp_path, tmp_path / "data")
    assert tuple(private[name] for name in names) == wanted
    assert [path.parent.name for path in private["manifests"]] == ["train", "test"]
    parts = [_made(task, 24, each, seed=k) for k, each in enumerate([(10, 0, 3), (2, 1, 11, 4)])]
    for seeds in (1, 5):
        merged = merge_seeds(parts, seeds)
        places = [(0, 1), (1, 1), (1, 0), (0, 2), (1, 3)][:seeds]
        assert merged.indices == tuple(range(seeds))
        for name in ("weights", "scores"):
            expected = [getattr(parts[part], name)[place] for part, place in places]
            np.testing.assert_array_equal(getattr(merged, name), expected)
        steps = [(row["seed_index"], row["step"]) for row in merged.history]
        assert steps == [(seed, step) for seed in range(seeds) for step in (1, 3)]
        assert [each["learning_rate"] for each in merged.chosen] == [0.5 + k for k in range(seeds)]
        assert merged.seconds == 2.5


def _answer(folder: Path, made: Callable[..., Any], *given: Any, **options: Any) -> Any:
    answer = answer_of(made, *given, **options)
    if not isinstance(answer, Exception):
        return answer
    return f"{type(answer).__name__}: {answer}".replace(str(folder), "~")


@pytest.mark.parametrize("passes", [False, True])
def test_a_job_names_each_method_that_failed_and_trains_the_others(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    _write_splits(tmp_path, **SPLITS["two"])
    names = ["b", "full", "few", "a", "c", "m10"]
    methods = {name: method_options(FULL) for name in names}
    methods["few"] = method_options(FULL | {"batch_size": 99})
    job = make_job(delta=1e-3, methods=methods)
    plans = plan_job(job, 60, tmp_path / "plans.json", calibration)
    fault = ValueError("foreign") if passes else DpprobeError("its own")  # foreign ones may pass
    faults = {"a": fault, "m10": DpprobeError("last"), "b": DpprobeError("own")}
    tried: list[str] = []

    def train(task: Any, _features: Any) -> None:
        tried.append(task.name.method)
        if error := faults.get(task.name.method):
            raise error

    monkeypatch.setattr(head_job, "_train_cell", train)
    places: dict[str, Any] = {
        "train": tmp_path / "train/manifest.json",
        "test": tmp_path / "test/manifest.json",
        "plans": plans,
        "cells": tmp_path / "cells",
    }
    own = replace(job, methods={name: methods[name] for name in ("full", "c")})
    opened = open_job(own, **places, overlap=None, tables=None)  # others' failures are not its own
    assert (opened.failure_reasons, opened.planned_methods) == ({}, ["full", "c"])
    with pytest.raises(DpprobeError) as caught:
        head_job.train_job(job, **places, device="cpu")
    few, *rest = str(caught.value).splitlines()
    assert few.startswith("few: batch_size 99 is above the 60")
    said = repr(fault) if passes else "its own"
    assert rest == ["b: own", f"a: {said}", "m10: last"]
    assert tried == ["b", "full", "a", "c", "m10"]
    assert may_pass(caught.value) == passes
    opened = Mock(side_effect=DpprobeError("stop"))
    monkeypatch.setattr(head_job, "open_job", opened)
    files = places | {"overlap": Path("o"), "tables": Path("t")}
    with pytest.raises(DpprobeError, match="stop"):
        head_job.train_job(job, **files, device="cpu")
    assert (opened.call_args.args, opened.call_args.kwargs) == ((job,), files)


def _save(path: Path, weights: Any) -> Path:
    save_file({"weights": np.ascontiguousarray(weights, np.float32)}, path)
    return path


def _write_private(root: Path, generator: np.random.Generator, head: np.ndarray) -> PrivateData:
    """Writes features and cells of eleven datasets; d3 has the head, and d7 a table.

    d1 has wider rows, d5 and d6 fewer weights, d0 and d2 a damaged file.
    """
    names = [f"d{k}" for k in range(11)]
    for number, name in enumerate(names):
        cell = root / f"cells/{name}/b/m/eps-4"
        cell.mkdir(parents=True)
        seeds = (number != 4) * generator.normal(size=(2, 3, 7))
        seeds[1] = head if number == 3 else seeds[1]
        _save(cell / "heads.safetensors", seeds[:, :, : {5: 5, 6: 4}.get(number, 7)])
        rows = generator.normal(size=(30 + number, 6 + (number == 1)))
        for backbone in ("b", "other"):
            write_split(
                root / f"features/{name}/{backbone}/train",
                rows + (backbone == "other"),
                np.arange(len(rows)) % 3,
                split="train",
                dataset_fingerprint=f"{name} {backbone}",
            )
    (root / "cells/d0/b/m/eps-4/heads.safetensors").write_text("damaged")
    (root / "features/d2/b/train/manifest.json").write_text("{")
    write_json(
        root / "data/d7/dataset.json",
        {
            "format": "dpprobe-dataset",
            "format_version": 1,
            "class_names": ["a"],
            "splits": {},
            "multi_label": False,
            "groups": [],
            "fingerprint": "d7",
            "source": {},
        },
    )
    return PrivateData(
        dataset="d0",
        backbone="b",
        class_names=("a", "b", "c"),
        datasets=names,
        results=root,
        manifests=[root / "features/d0/b/train/manifest.json"],
        tables=root / "data",
        heads=list(generator.normal(size=(2, 3, 7)).astype(np.float32)),
    )


def test_public_files_of_several_datasets_are_judged_as_stored(tmp_path: Path) -> None:
    """Heads in disguise, features and tables of each dataset, and what only looks like them."""
    generator = np.random.default_rng(0)
    head = generator.normal(size=(3, 7)).astype(np.float32)
    private = _write_private(tmp_path, generator, head)
    near = head.copy()
    near[0] *= -2
    near[1:] += 1
    short = [
        load_file(tmp_path / f"cells/{d}/b/m/eps-4/heads.safetensors")["weights"][1]
        for d in ("d5", "d6", "d6")
    ]
    for array in short[:2]:
        array[:2] += np.arange(array.shape[1])
    heads = {
        "same": head,
        "shifted": head + 3,
        "half": head.astype(np.float16),
        "no bias": head[:, :6],
        "one class": near,
        "noisy": head + 0.01,
        "far": head + 0.01 * generator.normal(size=(3, 7)),
        "other": generator.normal(size=(3, 7)),
        "fitted": 2 * private.heads[0],
        "fitted last": private.heads[1] + 1,
        "one of four": short[0],
        "one of three": short[1],
        "three weights": 2 * short[2],
        "zeros": np.zeros((3, 7)),
        "two classes": head[:2],
        "narrow": head[:, :5],
        "vector": head[0],
        "negative": -0.1 * (head - head[1:2]),
        "alike": np.arange(1, 8) * np.ones((3, 1)),
        "first zero": head * np.array([[0], [1], [1]]),
        "without one": head - head[:1],
        "last alone": head[:, :-1] * np.array([[0], [0], [3]]),
        "square": np.square(head),
        "scalar": 1.0,
        "several": np.stack([head, head]),
        "one of one": head[None],
        "nan": head * np.nan,
    }

    def count_hashes(method: MethodOptions) -> int:
        return len(private.check_public(method).hashes)

    def judge(**options: Any) -> int:
        return count_hashes(
            method_options({"head": "sgd", "batch_size": "full", "steps": 1, **options})
        )

    answers = {
        name: _answer(
            tmp_path, judge, init="file", init_file=str(_save(tmp_path / "start", values))
        )
        for name, values in heads.items()
    }
    tables = [f"features/{d}/{b}/train" for d in ("d0", "d5", "d10") for b in ("b", "other")]
    for name, rows, fingerprint in (("table", 30, "d7"), ("public", 40, "x")):
        features = np.random.default_rng(9).normal(size=(rows, 6))
        write_split(
            tmp_path / name,
            features,
            np.arange(rows) % 3,
            split="train",
            dataset_fingerprint=fingerprint,
        )
    for share in (0, 1, 3, 10, 30):
        own = FeatureStore(tmp_path / "features/d4/b/train/manifest.json").read()[:share]
        mixed = np.concatenate([generator.normal(size=(50, 6)), own])
        write_split(tmp_path / f"share {share}", mixed, np.arange(len(mixed)) % 3, split="train")
        tables.append(f"share {share}")
    for name in (*tables, "table", "public", "absent"):
        method = method_options(
            {
                "head": "feature_covariance",
                "normalize": "l2",
                "public_covariance": str(tmp_path / name / "manifest.json"),
            }
        )
        answers[name] = _answer(tmp_path, count_hashes, method)
    cell = tmp_path / "cells/d3/b/m/eps-4"
    start = _save(tmp_path / "start", head)
    foreign, digest = hash_value("other"), sha256_file(start)
    started = ({"x": foreign}, {"x": digest}, {"x": foreign, "y": digest}, [digest])
    for number, said in enumerate((*({"public_files": each} for each in started), {}, [digest])):
        write_json(cell / "privacy.json", said)
        answers[f"started {number}"] = _answer(
            tmp_path, lambda: judge(init="file", init_file=str(start))
        )
    torch_save({"weights": torch.from_numpy(head).bfloat16()}, start)
    answers["bfloat16"] = _answer(tmp_path, lambda: judge(init="file", init_file=str(start)))
    private = replace(private, results=None)
    _save(start, head)
    answers["no results"] = _answer(tmp_path, lambda: judge(init="file", init_file=str(start)))
    check_values("judged_public_files", answers)
