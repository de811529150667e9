"""A training job reuses, completes and retrains cells, and never loses finished ones."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from dpprobe.errors import DataError, DiskError, DpprobeError, PrivacyError, may_pass
from dpprobe.features import text_file
from dpprobe.files import disk_errors
from dpprobe.files.json_files import read_json
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.privacy import statement as statements
from dpprobe.results.cell_files import CELL_FILES, PAYLOAD_FILES
from dpprobe.training.cell_task import CellTask
from dpprobe.training.job_features import JobFeatures, read_job_features
from dpprobe.training.tasks import OpenedJob, Request, open_job
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import (
    change_job,
    list_files,
    make_job,
    plan_job,
    run_job,
    watch_renames,
)

ROWS = {"train": 300, "test": 90}
CLASSES, DIMENSION = 3, 6


def write_features(
    folder: Path, *, splits: Sequence[str] = tuple(ROWS), shift: float = 0.0
) -> None:
    """Writes two small splits of three separable classes."""
    for number, (split, rows) in enumerate(ROWS.items()):
        if split not in splits:
            continue
        labels = np.arange(rows) % CLASSES
        write_split(folder / split, separable(labels, DIMENSION, seed=number) + shift, labels)


METHODS = {
    "small": method_options({"head": "sgd", "batch_size": 30, "steps": 12}),
    "full": method_options({"head": "sgd", "batch_size": "full", "steps": 4}),
}


@dataclass(frozen=True)
class Run:
    """A job on the features in a folder; `units` is the number of units by kind."""

    folder: Path
    job: Request
    calibration: Path
    units: Mapping[str, int]

    def cell(self, method: str) -> Path:
        job = self.job
        return self.folder / "cells" / job.dataset / job.backbone / method / f"eps-{job.epsilon}"

    def stored(self, method: str) -> list[Path]:
        """Returns the folders of a method's cells in the store."""
        records = sorted(self.folder.glob(".cells/*/metrics.json"))
        methods = {path.parent: read_json(path)["cell"]["method"] for path in records}
        return [folder for folder, of in methods.items() if of == method]

    def read(self, method: str, name: str) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.cell(method) / f"{name}.json").read_text())
        return values

    def record(self, method: str) -> dict[str, Any]:
        return self.read(method, "metrics")

    def contents(self, method: str) -> dict[str, bytes]:
        return {name: (self.cell(method) / name).read_bytes() for name in CELL_FILES}

    def plan(self, job: Request) -> Path:
        plans = self.folder / f"plans-{job.epsilon}.json"
        return plan_job(job, self.units[job.terms.unit], plans, self.calibration)

    def open(self, overlap: Path | None = None, **changes: Any) -> OpenedJob:
        job = change_job(self.job, **changes)
        return open_job(job, list_files(self.folder, self.plan(job), overlap=overlap))

    def train(self, device: str = "cpu", memory_mb: int = 1000, **changes: Any) -> None:
        job = change_job(self.job, **changes)
        run_job(self.folder, job, self.plan(job), device=device, memory_mb=memory_mb)


@pytest.fixture
def run(tmp_path: Path, calibration: Path) -> Run:
    write_features(tmp_path)
    return Run(tmp_path, make_job(methods=METHODS), calibration, {"image": ROWS["train"]})


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns a list of the calls of fit_heads: (batch size, number of seeds)."""
    calls: list[tuple[str, int]] = []
    original = fit_heads

    def counted(options: Any, data: Any, plan: Any, seeds: Any, **rest: Any) -> Any:
        calls.append((str(options.batch_size), len(seeds)))
        return original(options, data, plan, seeds, **rest)

    monkeypatch.setattr("dpprobe.training.head_fits.fit_heads", counted)
    return calls


def test_a_cell_s_files_agree_with_each_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = watch_renames(monkeypatch)
    run.train()
    published = [path.name for path in renamed if path.parent == run.cell("small")]
    assert sorted(published) == sorted(CELL_FILES)
    assert published[-1] == "metrics.json", "which says that the cell is complete"
    record = run.record("small")
    weights = load_file(run.cell("small") / "heads.safetensors")["weights"]
    assert weights.shape == (2, CLASSES, DIMENSION + 1)
    predictions = pq.read_table(run.cell("small") / "predictions.parquet").to_pandas()
    assert len(predictions) == 2 * ROWS["test"]
    for seed in record["seeds"]:
        rows = predictions[predictions["seed_index"] == seed["index"]]
        chosen = np.stack(rows["scores"].to_list()).argmax(1)
        assert seed["accuracy"] == pytest.approx(np.mean(chosen == rows["label"]))
    assert rows["id"].tolist() == [f"test-{row}" for row in range(ROWS["test"])]
    assert record["summary"]["accuracy"]["count"] == 2
    history = pq.read_table(run.cell("small") / "history.parquet").to_pandas()
    last = history.groupby("seed_index")["test_accuracy"].last().tolist()
    assert last == pytest.approx([seed["accuracy"] for seed in record["seeds"]], abs=1e-6)
    assert history["step"].max() == 12


def test_features_above_the_limit_are_streamed_to_the_same_cells(run: Run) -> None:
    methods = dict.fromkeys(("full", "other"), METHODS["full"])
    run.train(methods=methods)
    kept = [seed["accuracy"] for seed in run.record("full")["seeds"]]
    weights = load_file(run.cell("full") / "heads.safetensors")["weights"]
    (run.cell("full") / "metrics.json").unlink()
    run.train(methods=methods, memory_mb=0)
    assert [seed["accuracy"] for seed in run.record("full")["seeds"]] == pytest.approx(kept)
    again = load_file(run.cell("full") / "heads.safetensors")["weights"]
    np.testing.assert_allclose(again, weights, rtol=1e-4, atol=1e-5)
    with pytest.raises(DpprobeError, match="small: .* do not fit into memory_mb"):
        run.train(memory_mb=0)


RELEASING: list[tuple[dict[str, Any], str, list[str]]] = [
    (
        {"head": "sgd", "batch_size": "full", "steps": 4, "normalize": "centred"},
        "centre",
        ["centre", "gradients"],
    ),
    (
        {"head": "momentum", "steps": 3, "class_priors": "released"},
        "class_priors",
        ["class_counts", "centre", "gradients"],
    ),
    (
        {
            "head": "tuned",
            "base": {"head": "sgd", "batch_size": "full", "steps": 3},
            "trials": 3,
            "search": {"learning_rate": [0.5, 2.0]},
        },
        "chosen",
        ["score", "gradients"],
    ),
]


@pytest.mark.parametrize(("values", "name", "mechanisms"), RELEASING)
def test_what_is_released_next_to_a_head_stays_with_its_seed(
    run: Run, values: dict[str, Any], name: str, mechanisms: list[str]
) -> None:
    """Such results are statistics of a normalisation, class priors, and options from a search."""
    methods = {"m": method_options(values)}

    def read() -> list[Any]:
        seeds, tensors = run.record("m")["seeds"], load_file(run.cell("m") / "heads.safetensors")
        kept = tensors[name].tolist() if name in tensors else [seed[name] for seed in seeds]
        if name == "class_priors":
            assert kept == [np.float32(seed[name]).tolist() for seed in seeds]
            assert np.allclose(kept, 1 / 3, atol=0.2)
        if name == "chosen":
            assert {each["learning_rate"] for each in kept} <= {0.5, 2.0}
        return kept

    run.train(methods=methods)
    first = read()
    run.train(methods=methods, seeds=3)
    grown = read()
    assert grown[:2] == first
    assert len(grown) == 3
    assert name == "chosen" or first[0] != first[1]
    statement = run.read("m", "privacy")
    assert [item["name"] for item in statement["mechanisms"]] == mechanisms
    assert ("class_frequencies" in statement["outputs"]) == (name == "class_priors")
    assert statement["epsilon_realised"] <= 4
    assert run.record("m")["noise_multiplier"] is None  # there are several


def test_a_kept_cell_gets_today_s_statement_without_training(
    run: Run, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    before, both = run.contents("small"), {method: run.contents(method) for method in METHODS}
    fits.clear()
    files = [run.cell("small") / name for name in CELL_FILES]
    for file in files:
        os.utime(file, (0, 0))
    run.train()
    assert {method: run.contents(method) for method in METHODS} == both
    assert all(file.stat().st_mtime for file in files), "marked as seen by this run"
    monkeypatch.setitem(statements.NOT_COVERED, "benchmark", ("a_name_that_was_forgotten",))
    run.train()
    after = run.contents("small")
    assert fits == []
    assert b"a_name_that_was_forgotten" in after["privacy.json"]
    assert after["heads.safetensors"] == before["heads.safetensors"]
    said = (json.loads(one["metrics.json"])["files"]["privacy.json"] for one in (before, after))
    assert len(set(said)) == 2


def test_a_new_seed_is_added_to_the_old_ones(run: Run, fits: list[tuple[str, int]]) -> None:
    run.train()
    before = run.record("small")
    weights = load_file(run.cell("small") / "heads.safetensors")["weights"]
    fits.clear()
    run.train(seeds=4)
    assert sorted(fits) == [("30", 2), ("full", 2)]
    after = load_file(run.cell("small") / "heads.safetensors")["weights"]
    np.testing.assert_array_equal(after[:2], weights)
    assert run.record("small")["seeds"][:2] == before["seeds"]
    history = pq.read_table(run.cell("small") / "history.parquet").to_pandas()
    assert history.groupby("seed_index")["step"].max().to_dict() == dict.fromkeys(range(4), 12)
    fresh = run.folder / "fresh"
    fresh.mkdir()
    write_features(fresh)
    replace(run, folder=fresh).train(seeds=4)
    whole = load_file(replace(run, folder=fresh).cell("small") / "heads.safetensors")["weights"]
    np.testing.assert_allclose(after, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CELL_FILES)
def test_a_damaged_cell_file_retrains_only_that_cell(
    run: Run, fits: list[tuple[str, int]], name: str
) -> None:
    run.train()
    before = run.contents("small")
    path = run.cell("small") / name
    path.write_bytes(path.read_bytes()[:-5])
    fits.clear()
    run.train()
    assert fits == [("30", 2)]
    after = run.contents("small")
    assert {key: after[key] for key in PAYLOAD_FILES} == {key: before[key] for key in PAYLOAD_FILES}


def seeds_of(run: Run, method: str = "small") -> list[str]:
    seeds: list[str] = run.read(method, "privacy")["seeds"]
    return seeds


CHANGES: list[dict[str, Any]] = [
    {},
    {"study_seed": 1},
    {"study_seed": 11},
    {"epsilon": "3"},
    {"delta": 2e-4},
    {"dataset": "other"},
    {"backbone": "other"},
    {"mode": "release"},
]


def test_cells_that_differ_in_any_input_have_different_fingerprints_and_noise(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that differ in one input must not share noise."""
    start = run.folder / "start.safetensors"
    small = METHODS["small"]
    started = small.model_copy(update={"init": "file", "init_file": str(start)})
    slower = small.model_copy(update={"learning_rate": 0.01})
    found: list[str | int] = []

    def note(method: str = "small", options: MethodOptions = small, **changes: Any) -> None:
        task = run.open(methods={method: options}, **changes).make_task(method, device="cpu")
        assert task.identity["train"] != task.identity["test"]
        found.extend([task.fingerprint, task.derive_seed(0), task.derive_seed(1)])

    for weights in (0.5, 0.25):
        values = np.full((CLASSES, DIMENSION), weights, np.float32)
        save_file({"weights": values}, start)
        note(options=started)
    for change in CHANGES:
        note(**change)
    note("other")
    note(options=slower)
    monkeypatch.setattr("dpprobe.training.tasks.ALL_HEADS", 10**6)
    note()
    monkeypatch.undo()
    monkeypatch.setattr(type(small), "fit_version", 10**6)
    note()
    monkeypatch.undo()
    for split in ROWS:
        for path in (run.folder / split).iterdir():
            path.unlink()
        write_features(run.folder, splits=[split], shift=0.5)
        note()
    assert len(set(found)) == len(found) == 3 * (len(CHANGES) + 8)


def test_only_what_changed_is_trained_again(run: Run, fits: list[tuple[str, int]]) -> None:
    run.train()
    fits.clear()
    slower = METHODS["small"].model_copy(update={"learning_rate": 0.01})
    run.train(methods={**METHODS, "small": slower})
    assert [batch for batch, _ in fits] == ["30"]
    run.train(study_seed=1)
    assert [batch for batch, _ in fits] == ["30", "30", "full"]


@pytest.mark.parametrize(
    "failure", [PrivacyError("made to fail"), ValueError("made to fail")], ids=["own", "foreign"]
)
def test_one_method_s_failure_keeps_the_others_work(
    run: Run, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    original = fit_heads
    trained: list[str] = []

    def fit(options: Any, *arguments: Any, **rest: Any) -> Any:
        trained.append(str(options.batch_size))
        if options.batch_size == 30 and len(trained) <= 2:
            raise failure
        return original(options, *arguments, **rest)

    monkeypatch.setattr("dpprobe.training.head_fits.fit_heads", fit)
    with pytest.raises(DpprobeError, match=r"small: .*made to fail"):
        run.train()
    assert not run.cell("full").exists(), "nothing is published by a job that failed"
    assert len(run.stored("full")) == 1
    assert run.stored("small") == []
    run.train()
    assert trained == ["30", "full", "30"]
    for method in METHODS:
        assert run.record(method)["cell"]["method"] == method
        (stored,) = run.stored(method)
        for name in CELL_FILES:
            assert (stored / name).samefile(run.cell(method) / name), "linked, not copied"


def unfinished(run: Run) -> list[str]:
    """Returns paths of unfinished files."""
    paths = [str(path.relative_to(run.folder)) for path in run.folder.rglob("*")]
    return [path for path in paths if "partial" in path]


def test_a_cell_without_room_leaves_what_was_finished(
    run: Run, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    before = run.contents("full")
    monkeypatch.setattr(disk_errors, "WAIT", 0)
    original, left = pq.write_table, [None] * 2

    def write(table: Any, path: Path, **options: Any) -> None:
        if left and "scores" in table.column_names:  # simulates a full disk
            left.pop()
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(table, path, **options)

    monkeypatch.setattr("dpprobe.training.cell_contents.pq.write_table", write)
    with pytest.raises(DpprobeError, match="small: .*disk full on .*; free space or") as caught:
        run.train(seeds=3)
    assert may_pass(caught.value)
    assert run.contents("full") == before
    assert unfinished(run) == []
    fits.clear()
    run.train()
    assert fits == []


def test_a_file_system_that_loses_what_was_written_is_reported(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a mounted bucket, a renamed folder may contain the previous content of its files."""
    store = CellTask.store_cell

    def store_and_lose(task: CellTask, *contents: Any) -> None:
        store(task, *contents)
        (task.stored / "metrics.json").write_text("{")

    monkeypatch.setattr(CellTask, "store_cell", store_and_lose)
    with pytest.raises(DiskError, match="changed between writing and reading.*storage.md"):
        run.train()
    assert not run.cell("small").exists()


def test_a_disk_that_fills_up_at_the_end_leaves_the_old_cell(
    run: Run, fits: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    before = run.contents("small")
    copies: list[Path] = []

    def copy(source: Path, target: Path) -> None:
        copies.append(target)
        target.write_bytes(source.read_bytes()[:100])
        if len(copies) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    def refuse_link(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr("dpprobe.files.result_store.os.link", refuse_link)
        patched.setattr("dpprobe.files.result_store.shutil.copyfile", copy)
        with pytest.raises(OSError, match="No space left"):
            run.train(seeds=3)
    assert run.contents("small") == before
    assert unfinished(run) == []
    fits.clear()
    run.train(seeds=4)
    assert sorted(fits) == [("30", 1), ("full", 1)], "the stored cell has three"
    assert len(run.record("small")["seeds"]) == 4


def test_a_half_published_cell_is_published_again(run: Run, fits: list[tuple[str, int]]) -> None:
    run.train()
    before = run.contents("full")
    for name in CELL_FILES:  # as after a kill between renames of a cell's files
        if name != "heads.safetensors":
            (run.cell("full") / name).unlink()
    fits.clear()
    run.train()
    assert fits == []
    assert run.contents("full") == before


def test_a_start_of_other_classes_is_refused_before_training(
    run: Run, fits: list[tuple[str, int]]
) -> None:
    path = run.folder / "text.safetensors"
    metadata = {"format": text_file.FORMAT, "class_names": ["c", "b", "a"]}
    weights = {"weights": np.eye(CLASSES, DIMENSION, dtype=np.float32)}
    save_file(weights, path, metadata={"dpprobe": json.dumps(metadata)})
    method = method_options(
        {"head": "sgd", "batch_size": 30, "steps": 12, "init": "file", "init_file": str(path)}
    )
    with pytest.raises(DataError, match="have another order"):
        run.train(methods={"small": METHODS["small"], "started": method})
    assert not fits


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes a stand-in GPU that only full batches use; lists the devices of rows that jobs read."""
    found: list[str] = []

    def read(*args: Any, device: str, **rest: Any) -> JobFeatures:
        found.append(device)
        return read_job_features(*args, device="cpu", **rest)

    monkeypatch.setattr("dpprobe.training.head_fits.read_job_features", read)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for name in ("LEAST_STEP", "LEAST_FIT"):
        # limits that the full batch reaches, but not the small batch
        monkeypatch.setattr(f"dpprobe.heads.fit_device.{name}", ROWS["train"] * DIMENSION * CLASSES)
    return found


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_only_work_that_pays_has_the_gpu_s_cells_and_noise(
    run: Run, fits: list[tuple[str, int]], places: list[str], device: str
) -> None:
    run.train()
    small, on_cpu, seeds = run.contents("small"), run.record("full"), seeds_of(run, "full")
    fits.clear()
    run.train(device)
    assert fits == [("full", 2)], "small batches keep their cell"
    assert run.contents("small") == small
    assert run.record("full")["fingerprint"] != on_cpu["fingerprint"]
    assert not set(seeds) & set(seeds_of(run, "full"))
    run.train(device)
    assert len(fits) == 1, "the GPU's cells are kept"
    run.train("cpu")
    assert run.record("full")["fingerprint"] == on_cpu["fingerprint"]
    assert seeds_of(run, "full") == seeds
    assert places == ["cpu", "cuda"], "the CPU's cells are still in the store"


def test_a_gpu_s_finished_cells_are_kept_where_there_is_none(
    run: Run, fits: list[tuple[str, int]], places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(run, job=replace(run.job, methods=dict(reversed(METHODS.items()))))
    run.train("cuda")
    assert [batch for batch, _ in fits] == ["30", "full"], "each from the rows of its device"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fits.clear()
    run.train("cuda")
    assert fits == []
    assert places == ["cpu", "cuda"]


def test_a_job_of_small_work_never_asks_for_a_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dpprobe.devices.keep_one_device", "torch.cuda.is_available"):
        monkeypatch.setattr(name, lambda: pytest.fail("the job looks for a GPU"))
    run.train("auto")
    run.train("cuda")


def test_an_exact_cell_is_equal_with_a_gpu(
    run: Run, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU only computes integers: rows and everything else stay on the CPU."""
    found = []

    def fit(options: Any, data: Any, *args: Any, **rest: Any) -> Any:
        found.append(data.exact_device)
        data.exact_device = "cpu"
        return fit_heads(options, data, *args, **rest)

    monkeypatch.setattr("dpprobe.training.head_fits.fit_heads", fit)
    method = METHODS["full"].model_copy(update={"engine": "exact"})
    run = replace(run, job=replace(run.job, methods={"full": method}))
    run.train()
    fingerprint = run.record("full")["fingerprint"]
    run.train("auto")
    assert found == ["cpu"]
    for stored in run.stored("full"):
        (stored / "metrics.json").unlink()
    run.train("auto")
    assert found == ["cpu", "cuda"]
    assert places == ["cpu", "cpu"]
    assert run.record("full")["fingerprint"] == fingerprint


@pytest.mark.parametrize("foreign", [False, True])
def test_a_job_names_each_method_that_failed_and_trains_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """A method without a plan is named first; an error of another library allows a retry."""
    methods = dict.fromkeys(["b", "full", "few", "a", "c", "m10"], METHODS["full"])
    methods["few"] = method_options({"head": "sgd", "batch_size": 301, "steps": 3})
    fault = ValueError("foreign") if foreign else DpprobeError("its own")
    faults = {"a": fault, "m10": DpprobeError("last"), "b": DpprobeError("own")}
    tried: list[str] = []

    def train(task: CellTask, _features: JobFeatures) -> None:
        tried.append(task.name.method)
        if error := faults.get(task.name.method):
            raise error

    monkeypatch.setattr("dpprobe.training.head_fits.train_cell", train)
    with pytest.raises(DpprobeError) as caught:
        run.train(methods=methods)
    few, *rest = str(caught.value).splitlines()
    assert few.startswith("few: batch_size 301 is above the 300")
    said = "ValueError('foreign')" if foreign else "its own"
    assert rest == ["b: own", f"a: {said}", "m10: last"]
    assert tried == ["b", "full", "a", "c", "m10"]
    assert may_pass(caught.value) == foreign
    faults.clear()
    with pytest.raises(DpprobeError, match=r"^few: batch_size 301 is above the 300.*$") as alone:
        run.train(methods=methods)
    assert not may_pass(alone.value), "a plan that cannot exist fails again"


def test_another_method_s_failure_is_not_a_job_s_own(run: Run) -> None:
    few = method_options({"head": "sgd", "batch_size": 301, "steps": 3})
    path = plan_job(
        replace(run.job, methods={**METHODS, "few": few}),
        ROWS["train"],
        run.folder / "plans-4.json",
        run.calibration,
    )
    opened = open_job(run.job, list_files(run.folder, path, data=run.folder / "data"))
    assert (opened.failure_reasons, opened.planned_methods) == ({}, [*METHODS])
    private = opened.private
    assert (private.dataset, private.backbone, private.datasets) == ("toy", "none", ("toy",))
    assert (private.results, private.tables) == (run.folder, run.folder / "data")
    assert [each.parent.name for each in private.manifests] == ["train", "test"]
