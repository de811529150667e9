"""Heads of simulated sites: pooled bits, the order of four heads, and sites that are too small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.sites import ANALYSIS, choose_method
from dpprobe.analyses.sites.measure import (
    Pool,
    _plan_sizes,
    simulate_sites,
    split_units,
    train_alone,
)
from dpprobe.analyses.sites.options import SimulatedSitesOptions
from dpprobe.analyses.sites.show import list_notes, make_sites_table, plot_sites, sites_table
from dpprobe.analyses.sites.sites_record import SitesRecord
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.training.fit_inputs import FitInputs
from tests.support.feature_stores import write_split
from tests.support.figures import save_bytes
from tests.support.small_study import STUDY

DIMENSION, CLASSES = 16, 3
HEAD = {"head": "least_squares", "normalize": "l2"}


def write_rows(folder: Path, labels: np.ndarray, patients: Sequence[str] | None = None) -> Path:
    generator = np.random.default_rng(len(labels))
    features = generator.normal(size=(len(labels), DIMENSION)).astype(np.float32)
    features[np.arange(len(labels)), labels] += 3
    return write_split(folder, features, labels, units=patients)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """1,800 rows of 900 patients, and 300 test rows."""
    labels = np.random.default_rng(1).integers(CLASSES, size=1800)
    patients = [f"p{row // 2}" for row in range(1800)]
    test = np.arange(300) % CLASSES
    return (
        write_rows(tmp_path / "train", labels, patients),
        write_rows(tmp_path / "test", test, [f"t{row}" for row in range(300)]),
    )


def make_study(**block: Any) -> Study:
    return load_study({**STUDY, "methods": {"head": HEAD}, "epsilons": [1], "sites": block})


def simulate(folder: Path, stores: tuple[Path, Path], unit: str, **block: Any) -> SitesRecord:
    study = make_study(**block).model_copy(update={"seeds": 2})
    record = folder / "sites/digits/pixels.json"
    inputs = {
        "method": "head", "epsilons": ["1"], "delta": 1e-4, "accountant": "pld", "unit": unit,
        "metric": None, "seed": 0,
    }  # fmt: skip
    simulate_sites(
        *stores, record, folder / "sites", options=SimulatedSitesOptions(**block), inputs=inputs,
        dataset="digits", backbone="pixels", threads=1, study=study,
    )  # fmt: skip
    return SitesRecord.read(record)


def read_pool(stores: tuple[Path, Path], unit: str) -> Pool:
    train, test = stores
    return Pool.read(FitInputs(FeatureStore(train), unit), test, None)


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_the_order_is_alone_averaged_secure_sums_pooled(
    tmp_path: Path, stores: tuple[Path, Path], unit: str
) -> None:
    record = simulate(tmp_path, stores, unit, counts=6, splits=["equal", "labels"])
    assert (record.n, record.metric) == (1800 if unit == "image" else 900, "accuracy")
    for cell in record.cells:
        assert cell.alone is not None
        assert cell.averaged is not None
        assert cell.worst is not None
        assert cell.best is not None
        assert cell.worst < cell.alone.mean < cell.best
        assert cell.alone.low < cell.alone.mean < cell.alone.high
        assert cell.alone.mean + 0.05 < cell.averaged.mean < cell.together.mean
        assert cell.together.mean == pytest.approx(cell.pooled.mean, abs=0.03)
        assert cell.untrained == cell.one_class == 0
    equal, skewed = record.cells
    assert equal.together == skewed.together
    assert equal.alone != skewed.alone
    assert sites_table([record]).rows[0][3].text == ("300" if unit == "image" else "150")


@pytest.mark.parametrize("split", ["equal", "labels"])
def test_secure_sums_with_an_aggregator_are_the_pooled_head(
    tmp_path: Path, stores: tuple[Path, Path], split: str
) -> None:
    pool = read_pool(stores, "patient")
    method = method_options(HEAD)
    inputs = {"delta": 1e-4, "accountant": "pld", "unit": "patient"}
    make_plan = _plan_sizes(method, "1", inputs, tmp_path)
    parts = split_units(pool.labels, 5, split, 2)
    together = pool.fit_together(method, parts, make_plan, 9, None)
    pooled = fit_heads(method, pool.features.train, make_plan(pool.n), [9])
    assert together.weights.tobytes() == pooled.weights.tobytes()
    assert pool.measure(pool.score(together)) == pool.measure(pool.score(pooled))
    shared = pool.fit_together(method, parts, make_plan, 9, 1)
    assert shared.weights.tobytes() != pooled.weights.tobytes()


def test_no_patient_is_at_two_sites(stores: tuple[Path, Path]) -> None:
    for unit in ("image", "patient"):
        pool = read_pool(stores, unit)
        seen = [set(pool.codes[np.isin(pool.codes, part)])
                for part in split_units(pool.labels, 7, "labels", 1)]  # fmt: skip
        assert len(set().union(*seen)) == sum(map(len, seen)) == 900
        assert pool.select(np.array([3, 8])).n == (4 if unit == "image" else 2)


def test_a_dozen_patients_at_ten_sites_and_three_rows_of_a_class(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [21, 12, 3])
    stores = (
        write_rows(tmp_path / "train", labels, [f"p{row // 3}" for row in range(36)]),
        write_rows(tmp_path / "test", np.arange(30) % 3),
    )
    record = simulate(tmp_path, stores, "patient", counts=[2, 10], splits=["equal", "sizes"])
    two, _, ten, sizes = record.cells
    assert (ten.smallest, ten.largest) == (1, 2)
    assert (sizes.smallest, two.largest) == (1, 6)
    assert ten.one_class > 10
    assert "sites of 20 over all seeds with examples of one class" in " ".join(list_notes(record))
    save_bytes(plot_sites(tmp_path / "sites/digits/pixels.json"), tmp_path / "a")


def test_sites_that_can_train_no_head_are_left_out_and_named(
    tmp_path: Path, stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = method_options(HEAD)
    pool = read_pool(stores, "image")
    inputs = {"delta": 1e-4, "accountant": "pld", "unit": "image"}
    plan = _plan_sizes(method, "1", inputs, tmp_path)

    def make_plan(n: int) -> Any:
        return plan(n if n > 10 else 0)

    parts = [np.arange(3), np.arange(3, 900)]
    alone = train_alone(method, pool, parts, make_plan, 1)
    assert len(alone.scores) == len(alone.failures) == 1
    module = "dpprobe.analyses.sites.measure"
    untrained = replace(alone, scores=[], failures=["too few: 3 units"])
    monkeypatch.setattr(f"{module}.train_alone", lambda *_: untrained)
    record = simulate(tmp_path, stores, "image", counts=2)
    cell = record.cells[0]
    assert (cell.alone, cell.averaged, cell.worst, cell.best) == (None,) * 4
    assert cell.untrained == 2
    assert "2 sites of 4 over all seeds can train no head alone" in list_notes(record)[0]
    table = make_sites_table([tmp_path / "sites/digits/pixels.json"])
    assert any("(too few: 3 units)" in note for note in table.notes)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sites": {"method": "other"}}, "method: other is not in this study; write some of head"),
        ({"methods": {"a": {"head": "auto"}}}, "no method that sites can train: a (head auto: "),
        ({"epsilons": ["inf"]}, "epsilons: inf alone needs no noise"),
        ({"sites": {"backbones": ["resnet"]}}, "backbones: resnet is not in this study"),
        (
            {"sites": {"method": "b"}, "methods": {"b": {"head": "sgd"}, "c": HEAD}},
            "method: b: head sgd: sites add up",
        ),
    ],
)
def test_studies_that_sites_cannot_train_are_refused(changes: dict[str, Any], fault: str) -> None:
    study = load_study({**STUDY, "methods": {"head": HEAD}, "sites": {}, **changes})
    faults = ANALYSIS.list_faults(study)
    assert len(faults) == 1
    assert faults[0].startswith(fault)


def test_a_number_of_sites_is_enough_and_the_first_method_that_can_is_chosen() -> None:
    methods = {"ceiling": {"head": "nonprivate"}, "auto": {"head": "auto"}, "ours": HEAD}
    study = load_study({**STUDY, "methods": methods, "sites": {"counts": 5}})
    assert study.block(SimulatedSitesOptions) == SimulatedSitesOptions(counts=(5,))
    assert choose_method(study) == "ours"
    assert ANALYSIS.list_faults(study) == []
    assert ANALYSIS.list_files(study, "results") == ["results/sites/digits/pixels.json"]
