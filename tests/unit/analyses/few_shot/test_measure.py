"""Few-shot probes: whose rows they see, that they learn, and what their record says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from dpprobe.analyses.baseline_record import read_few_shot
from dpprobe.analyses.few_shot.measure import draw_shots, probe_few_shot
from tests.unit.analyses.tsne.test_measure import write_store

if TYPE_CHECKING:
    from dpprobe.study.study import Study

DIGITS = load_digits()


def _stores(folder: Path, train: slice, test: slice) -> tuple[Path, Path]:
    features = DIGITS.data / 16
    return (
        write_store(folder / "train", features[train], DIGITS.target[train]),
        write_store(folder / "test", features[test], DIGITS.target[test]),
    )


def _run(folder: Path, stores: tuple[Path, Path], **changes: Any) -> tuple[dict[str, Any], Any]:
    facts: dict[str, Any] = {
        "dataset": "digits",
        "backbone": "clip",
        "shots": (1, 4, "full"),
        "seeds": 3,
        "seed": 0,
        "memory_mb": 16000,
        "metric": None,
    } | changes
    probe_few_shot(
        *stores,
        rows=folder / "probes.parquet",
        record=folder / "probes.json",
        options={name: facts.pop(name) for name in ("shots", "seeds")},
        threads=torch.get_num_threads(),
        study=cast("Study", SimpleNamespace(device="cpu")),
        **facts,
    )
    return read_few_shot(folder / "probes.json"), pq.read_table(folder / "probes.parquet")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    folder = tmp_path_factory.mktemp("few")
    return _run(folder, _stores(folder, slice(0, 300), slice(300, 900)))


def test_the_whole_split_is_the_ceiling(digits: tuple[dict[str, Any], Any]) -> None:
    """The same fit as the non-private head, whose penalty is chosen alike."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    record, table = digits
    scaler = StandardScaler().fit(DIGITS.data[:300] / 16)
    strength = 1 / (300 * table["penalty"].to_pylist()[-1])
    model = LogisticRegression(C=strength, max_iter=2000, tol=1e-6)
    model.fit(scaler.transform(DIGITS.data[:300] / 16), DIGITS.target[:300])
    reference = model.score(scaler.transform(DIGITS.data[300:900] / 16), DIGITS.target[300:900])
    found = record["results"][-1]["summary"]["accuracy"]["mean"]
    assert found == pytest.approx(reference, abs=5e-3)


def test_equal_runs_give_equal_files_and_another_seed_other_draws(tmp_path: Path) -> None:
    stores = _stores(tmp_path, slice(0, 200), slice(200, 300))
    first = _run(tmp_path, stores, shots=(1,))[1]["accuracy"].to_pylist()
    text = (tmp_path / "probes.json").read_bytes()
    assert _run(tmp_path, stores, shots=(1,))[1]["accuracy"].to_pylist() == first
    assert (tmp_path / "probes.json").read_bytes() == text
    assert len(set(first)) > 1, "the draws of one run differ"
    assert _run(tmp_path, stores, shots=(1,), seed=1)[1]["accuracy"].to_pylist() != first


def test_of_two_images_the_probe_is_the_nearest(tmp_path: Path) -> None:
    """Features in which the two hardly differ must not count most."""
    generator = np.random.default_rng(0)
    scale = np.linspace(0.1, 10, 64)
    features = generator.normal(size=(202, 64)) * scale
    target = np.arange(202) % 2
    features[:, -8:] += 24 * target[:, None]
    stores = (
        write_store(tmp_path / "train", features[:2], target[:2], class_names=("a", "b")),
        write_store(tmp_path / "test", features[2:], target[2:], class_names=("a", "b")),
    )
    record, _ = _run(tmp_path, stores, shots=(1,), seeds=1)
    rows = features.astype(np.float32)
    distances = [np.square(rows[2:] - rows[label]).sum(axis=1) for label in (0, 1)]
    nearest = float((np.argmin(distances, axis=0) == target[2:]).mean())
    assert nearest > 0.8
    found = record["results"][0]["summary"]["accuracy"]["mean"]
    assert found == pytest.approx(nearest, abs=0.011)


@given(
    rows=st.integers(1, 80),
    patients=st.integers(0, 30),
    count=st.integers(1, 8),
    several=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_draw_has_one_image_of_a_patient_for_each_class(
    rows: int, patients: int, count: int, several: bool, seed: int
) -> None:
    """Patients span classes; rows without any label are a class of their own.

    With one label per row the drawn ones are counted exactly, and without patients each is a unit.
    """
    generator = np.random.default_rng(seed)
    given_units = generator.integers(patients, size=rows) if patients else None
    units = np.arange(rows) if given_units is None else given_units
    labels = generator.integers(5, size=rows)
    if several:
        labels = (generator.random((rows, 3)) < 0.3).astype(np.uint8)
    drawn = draw_shots(labels, count, seed, given_units)
    assert (np.diff(drawn) > 0).all()
    assert set(draw_shots(labels, max(1, count - 1), seed, given_units)) <= set(drawn)
    columns = (*labels.T, ~labels.any(axis=1)) if several else np.eye(5)[:, labels]
    for column in columns:
        of, having = units[drawn][column[drawn] != 0], len(np.unique(units[column != 0]))
        assert len(np.unique(of)) >= min(count, having)
        assert several or len(of) == min(count, having)
    assert len(drawn) <= len(columns) * count
    if several and not patients:
        assert (~labels[drawn].any(axis=1)).sum() == min(count, (~labels.any(axis=1)).sum())


def test_a_patient_of_thirty_images_is_drawn_as_often_as_one_of_one() -> None:
    units = np.array([0] * 30 + [1, 2])
    labels = np.zeros(32, dtype=np.int64)
    drawn = [int(draw_shots(labels, 1, seed, units)[0]) for seed in range(600)]
    often = np.bincount(units[drawn], minlength=3)
    # 200 each, with a standard deviation of 11.5
    assert (np.abs(often - 200) < 50).all()
    assert len(set(drawn)) == 32, "each of the thirty has its turn"
