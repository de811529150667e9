"""The trials of an unpriced search train on the right rows, are recorded, and resume."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, Network
from dpprobe.finetune.options import Options
from dpprobe.finetune.train import Trained, train_network
from dpprobe.finetune.unpriced_search import best_trial
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.registry import method_options
from dpprobe.heads.transform import Transform
from dpprobe.results.search_record import SearchRecord, read_searched_values
from dpprobe.training import search_job as module
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.network_cell import NetworkFiles, open_network_job
from dpprobe.training.network_job import Limits
from dpprobe.training.search_job import held_out_rows, search_job, without_rows
from dpprobe.training.tasks import Request
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import change_job, make_job, plan_job

ROWS, CLASSES, DIMENSION, IMAGES = 300, 3, 6, 3
SPACE: dict[str, Any] = {"learning_rate": [0.01, 0.3, 2.0], "max_grad_norm": [0.5, 2.0]}


def searched(trials: int = 4, **changes: Any) -> Options:
    search = {"trials": trials, "space": SPACE, "held_out": 0.25}
    values = {"head": "fine_tune", "tune": "head", "steps": 4, "search": search, **changes}
    options = method_options(values)
    assert isinstance(options, Options)
    return options


def write_features(
    folder: Path,
    *,
    patients: Callable[[int], int] | None = None,
    several: bool = False,
    constant: bool = False,
) -> None:
    """Writes two splits of three separable classes; `patients` maps row numbers to patients."""
    for number, (split, rows) in enumerate({"train": ROWS, "test": 60}.items()):
        labels = np.arange(rows) // IMAGES % CLASSES
        features = separable(labels, DIMENSION, seed=number)
        held: np.ndarray[Any, Any] = labels.astype(np.int64)
        if several:
            held = np.eye(CLASSES, dtype=np.uint8)[labels] * (not constant)
            held[0] = 1
        units = [f"{split} {patients(row)}" for row in range(rows)] if patients else None
        write_split(folder / split, features, held, units=units, shards=2)


def head_network(*arguments: Any, **rest: Any) -> FineTunedNetwork:  # noqa: ARG001
    head = nn.Linear(DIMENSION, CLASSES)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    network = Network(nn.Identity(), head, Transform(NoNormalisation()), graph=None).eval()
    trained = dict(network.named_parameters())
    return FineTunedNetwork(module=network, trained=trained, shape=(DIMENSION,), from_images=False)


@dataclass
class Trainings:
    """Records every training, and interrupts the training with number `stop`."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    stop: int | None = None

    def __call__(
        self, options: Any, network: Any, inputs: Any, releases: Any, **rest: Any
    ) -> Trained:
        if self.stop == len(self.calls):
            raise KeyboardInterrupt
        trained = train_network(options, network, inputs, releases, **rest)
        self.calls.append({"options": options, "inputs": inputs, "releases": releases, **rest})
        return trained


@dataclass(frozen=True)
class Run:
    folder: Path
    calibration: Path
    job: Request
    trainings: Trainings
    output: str = "searches/eps-4.json"

    @property
    def path(self) -> Path:
        return self.folder / self.output

    def search(self, options: Options | None = None, **changes: Any) -> SearchRecord:
        options = options or searched()
        job = change_job(self.job, methods={"net": options}, **changes)
        plans = self.folder / f"plans-{job.epsilon}-{job.terms.unit}.json"
        plan_job(
            job, ROWS // IMAGES if job.terms.unit == "patient" else ROWS, plans, self.calibration
        )
        files = NetworkFiles(
            backbone=backbone_options({"family": "timm", "model": "test_vit"}),
            train=self.folder / "train/manifest.json",
            test=self.folder / "test/manifest.json",
            plans=plans,
            results=self.folder,
            private=("toy",),
        )
        search_job(
            open_network_job(job, files),
            files,
            output=self.path,
            limits=Limits(device="cpu", physical_batch=64, checkpoint_minutes=0),
        )
        return SearchRecord.read(self.path)


@pytest.fixture
def run(tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    write_features(tmp_path)
    monkeypatch.setattr("dpprobe.training.network_material.build_network", head_network)
    loaded = SimpleNamespace(weights_sha256=None)
    monkeypatch.setattr("dpprobe.training.network_material.load_backbone", lambda *_, **__: loaded)
    trainings = Trainings()
    monkeypatch.setattr(module, "train_network", trainings)
    return Run(tmp_path, calibration, make_job(delta=1e-3), trainings)


def test_a_record_has_the_trials_and_the_best(run: Run) -> None:
    record = run.search()
    assert [trial.number for trial in record.trials] == [0, 1, 2, 3]
    assert record.best == best_trial(record.trials)
    assert record.metric == "accuracy"
    assert record.cell.key == ("toy", "none", "net", "4")
    assert "without any epsilon" in record.note
    held = held_out_rows(FeatureStore(run.folder / "train/manifest.json"), 0.25, seed=0)
    assert record.held_out.rows == record.held_out.units == held.sum()
    assert record.held_out.share == 0.25
    assert read_searched_values(run.path) == record.best.values
    assert (record.best.score or 0) > 0.7
    assert not list(run.path.parent.glob(".*.checkpoint"))
    other, store = run.search(study_seed=3), FeatureStore(run.folder / "train/manifest.json")
    assert [each.values for each in other.trials] != [each.values for each in record.trials]
    assert (record.seed, other.seed) == (0, 3)
    assert other.held_out.rows == held_out_rows(store, 0.25, seed=3).sum() != record.held_out.rows


def test_trials_train_with_the_cell_s_plan_on_the_other_rows(run: Run) -> None:
    record = run.search()
    held = held_out_rows(FeatureStore(run.folder / "train/manifest.json"), 0.25, seed=0)
    seeds = set()
    for trial, call in zip(record.trials, run.trainings.calls, strict=True):
        np.testing.assert_array_equal(call["inputs"].kept, ~held)
        assert call["inputs"].n == ROWS
        plan = call["releases"].plan
        (mechanism,) = plan.mechanisms
        assert (plan.n, plan.epsilon, mechanism.count) == (ROWS, 4, 4)
        assert mechanism.sensitivity == trial.values["max_grad_norm"]
        assert call["options"].learning_rate == trial.values["learning_rate"]
        seeds |= set(call["releases"].seeds)
    noise = {call["releases"].plan.mechanisms[0].noise_multiplier for call in run.trainings.calls}
    kept = [call["checkpoint"] for call in run.trainings.calls]
    assert [len(noise), len(seeds), len({each.fingerprint for each in kept})] == [1, 4, 4]
    assert {
        (each.minutes, call["physical_batch"])
        for each, call in zip(kept, run.trainings.calls, strict=True)
    } == {(0, 64)}


@pytest.mark.parametrize("patients", [None, math.isqrt])
def test_a_trial_is_scored_only_on_held_out_rows(
    run: Run, patients: Callable[[int], int] | None
) -> None:
    """Each patient counts once, for any number of rows."""
    write_features(run.folder, patients=patients)
    record = run.search(searched(2))
    store = FeatureStore(run.folder / "train/manifest.json")
    held = held_out_rows(store, 0.25, seed=0)
    for trial, call in zip(record.trials, run.trainings.calls, strict=True):
        again = head_network()
        trained = train_network(
            call["options"],
            again,
            call["inputs"],
            type(call["releases"])(
                call["releases"].plan, call["releases"].seeds, torch.device("cpu")
            ),
            physical_batch=64,
        )
        assert trained.steps == 4
        rows = torch.from_numpy(store.read()[held])
        right = again.module(rows).argmax(1).numpy() == np.asarray(store.labels)[held]
        names = np.flatnonzero(held) if store.units is None else np.asarray(store.units)[held]
        rows_of = [np.mean(right[names == name]) for name in np.unique(names)]
        assert trial.score == pytest.approx(np.mean(rows_of))
        assert (trial.score == pytest.approx(right.mean())) == (patients is None)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_job_that_ends_early_continues(run: Run, stop: int) -> None:
    run.search()
    whole = run.path.read_bytes()
    for path in run.path.parent.iterdir():
        path.unlink()
    run.trainings.calls.clear()
    run.trainings.stop = stop
    with pytest.raises(KeyboardInterrupt):
        run.search()
    assert not run.path.exists()
    run.trainings.calls.clear()
    run.trainings.stop = None
    run.search()
    assert len(run.trainings.calls) == 4 - stop
    assert run.path.read_bytes() == whole


def test_a_current_record_is_kept(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run.search()
    before, calls = run.path.read_bytes(), len(run.trainings.calls)
    os.utime(run.path, (0, 0))
    run.search()
    assert (run.path.read_bytes(), len(run.trainings.calls)) == (before, calls)
    assert run.path.stat().st_mtime, "marked for Snakemake"
    assert "search reused, because" in caplog.text
    assert "unreadable" not in caplog.text
    run.path.write_text("{")
    run.search()
    assert f"{run.path}: unreadable; recreated" in caplog.text
    assert (run.path.read_bytes(), len(run.trainings.calls)) == (before, calls), "from its log"


def _with_patients(run: Run) -> SearchRecord:
    write_features(run.folder, patients=lambda row: row // IMAGES)
    return run.search()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.search(searched(steps=5)),
        lambda run: run.search(epsilon="2"),
        lambda run: run.search(study_seed=1),
        lambda run: run.search(metric="macro_accuracy"),
        lambda run: run.search(delta=1e-4),
        _with_patients,
    ],
)
def test_other_options_plans_or_rows_are_searched_again(
    run: Run, change: Callable[[Run], Any]
) -> None:
    first = run.search(searched(2))
    run.trainings.calls.clear()
    change(run)
    assert SearchRecord.read(run.path).fingerprint != first.fingerprint
    assert len(run.trainings.calls) == 4


def test_a_diverging_trial_does_not_stop_the_search(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    space = {"learning_rate": [0.3, 3e38]}
    options = searched(search={"trials": 6, "space": space})
    record = run.search(options)
    scores = {trial.values["learning_rate"]: trial.score for trial in record.trials}
    assert scores[3e38] is None
    assert record.best.values == {"learning_rate": 0.3}
    assert "diverged" in caplog.text
    assert not list(run.path.parent.glob(".*.checkpoint"))
    only = {"learning_rate": [3e38, 3.1e38]}
    with pytest.raises(ConfigError, match="all 2 trials diverged"):
        run.search(searched(search={"trials": 2, "space": only}))
    for other in (searched(search=None), method_options({"head": "sgd", "steps": 2})):
        with pytest.raises(ConfigError, match="net: this method has no search; add `search` to"):
            run.search(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_patients_are_held_out_whole(run: Run, unit: str) -> None:
    write_features(run.folder, patients=lambda row: row // IMAGES)
    store = FeatureStore(run.folder / "train/manifest.json")
    held = held_out_rows(store, 0.25, seed=0)
    patients = np.arange(ROWS) // IMAGES
    assert all(len(set(held[patients == patient])) == 1 for patient in set(patients))
    assert 0.1 < held.mean() < 0.4
    assert not np.array_equal(held, held_out_rows(store, 0.25, seed=1))
    record = run.search(searched(2), unit=unit)
    assert (record.held_out.rows, record.held_out.units) == (held.sum(), held.sum() // IMAGES)
    for call in run.trainings.calls:
        assert (call["inputs"].units is None) == (unit == "image")
        assert call["releases"].plan.n == (ROWS if unit == "image" else ROWS // IMAGES)


def test_multi_label_trials_are_scored_by_auc_and_refused_if_it_is_undefined(run: Run) -> None:
    write_features(run.folder, several=True)
    record = run.search(searched(2, loss="sigmoid"))
    assert record.metric == "auc"
    assert 0.5 < (record.best.score or 0) <= 1
    write_features(run.folder, several=True, constant=True)
    with pytest.raises(DataError, match="set a larger search.held_out"):
        run.search(searched(2, loss="sigmoid", search={"space": SPACE, "held_out": 0.01}))


@pytest.mark.parametrize("memory_mb", [0, 1000])
def test_held_out_rows_are_null_to_a_probe(tmp_path: Path, memory_mb: int) -> None:
    write_features(tmp_path, patients=lambda row: row // IMAGES)
    store = FeatureStore(tmp_path / "train/manifest.json")
    held = held_out_rows(store, 0.25, seed=0)
    whole = FitInputs(store, "patient").read_rows(device="cpu", memory_mb=memory_mb)
    assert (whole.features is None) == (memory_mb == 0)
    part = without_rows(whole, store, held)
    assert part.n == ROWS // IMAGES, "of patients"
    assert (part.units, part.labels) == (whole.units, whole.labels)
    np.testing.assert_array_equal(part.lengths.isinf().numpy(), held)
    for start, block in part.read_blocks(64):
        rows = slice(start, start + len(block))
        assert not block[torch.from_numpy(held[rows])].any()
        assert block[torch.from_numpy(~held[rows])].any(1).all()


def test_a_probe_is_fitted_in_each_trial_and_counted(run: Run) -> None:
    path = run.folder / "start.safetensors"  # public, but compared with private rows
    save_file({"weights": np.eye(CLASSES, DIMENSION, dtype=np.float32)}, path)
    start = {"init": "file", "init_file": str(path)}
    probe = {"share": 0.5, "method": {"head": "sgd", "steps": 3, "normalize": "none", **start}}
    record = run.search(searched(2, probe=probe))
    assert all(trial.score is not None for trial in record.trials)
    for call in run.trainings.calls:
        names = [item.name for item in call["releases"].plan.mechanisms]
        assert names == ["probe gradients", "gradients"]
    assert math.isfinite(record.best.score or math.nan)


def test_a_name_and_the_seed_alone_decide_what_is_held_out(tmp_path: Path) -> None:
    """The choice for a row does not depend on other rows, their order or their number."""
    names = [f"image {number}" for number in range(400)]

    def held(ids: list[str], share: float, seed: int = 0) -> dict[str, bool]:
        labels = np.arange(len(ids)) % CLASSES
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        store = FeatureStore(write_split(folder, separable(labels, 4, seed=0), labels, ids=ids))
        return dict(zip(ids, held_out_rows(store, share, seed=seed).tolist(), strict=True))

    whole = held(names, 0.25)
    assert held(names[::-1], 0.25) == whole
    assert held(names[:50], 0.25) == {name: whole[name] for name in names[:50]}
    assert held(names, 0.25, seed=1) != whole
    half = held(names, 0.5)
    assert all(half[name] for name in names if whole[name]), "a larger share holds out more"
    for share, chosen in ((0.25, whole), (0.5, half)):
        spread = 5 * math.sqrt(share * (1 - share) / 400)  # for a binomial share
        assert abs(np.mean(list(chosen.values())) - share) < spread
    for share in (1e-9, 1 - 1e-9):
        with pytest.raises(DataError, match=r"held_out .* leaves all 400 units .*another share"):
            held(names, share)
    patients = write_split(
        tmp_path / "p", separable(np.arange(8) % 3, 4, seed=0), np.arange(8) % 3, units=["p"] * 8
    )
    with pytest.raises(DataError, match="leaves all 1 units for training, or none"):
        held_out_rows(FeatureStore(patients), 0.5, seed=0)
