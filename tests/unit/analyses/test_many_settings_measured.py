"""What the jobs of analyses measure, over many settings, against stored answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpprobe.analyses.sites import measure as sites
from dpprobe.analyses.tsne import measure as tsne
from dpprobe.errors import DataError
from dpprobe.heads.registry import method_options
from tests.support.clouds import clouds
from tests.support.columns import by_column, or_error
from tests.support.stored_records import check_values
from tests.unit.analyses.sites.test_measure import HEAD, read_pool, simulate, write_rows
from tests.unit.analyses.tsne.test_measure import write_store


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def test_sites_are_as_stored(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).integers(3, size=240)
    patients = [f"p{row * 5 % 100}" for row in range(240)]
    stores = (
        write_rows(tmp_path / "train", labels, patients),
        write_rows(tmp_path / "test", np.arange(60) % 3, [f"t{row // 2}" for row in range(60)]),
    )
    made: dict[str, Any] = {}
    for unit in ("image", "patient"):
        record = simulate(
            tmp_path / unit,
            stores,
            unit,
            counts=[11, 4],
            colluders=1,
            splits=["sizes", "labels"],
            epsilons=["1", "30"],
        )
        values = record.model_dump(mode="json")
        # noise shares of sites that sum together are drawn by the system
        cells = [without(cell, "together") for cell in values.pop("cells")]
        made[unit] = [values, by_column(cells)]
        pool = read_pool(stores, unit)
        made[f"pool of {unit}"] = [
            pool.n,
            pool.labels,
            pool.codes,
            pool.select(np.array([0, 5, 99])).labels,
        ]
        plans = sites._plan_sizes(
            method_options(HEAD), "1", {"delta": 1e-4, "accountant": "pld", "unit": unit}, tmp_path
        )
        made[f"plan for {unit}"] = [plans(80).realised_epsilon, plans(80).unit, plans(80).n]

        def few(n: int, plans: Any = plans, least: int = 37 if unit == "image" else 11) -> Any:
            if n < least:
                raise DataError(f"{n} units, {least} needed")
            return plans(n)

        parts = [np.arange(3), np.arange(3, 50), np.flatnonzero(pool.labels == 1)[:30]]
        alone = [sites.train_alone(method_options(HEAD), pool, parts, few, seed) for seed in (1, 2)]
        described = sites.describe_alone(pool, alone)
        for name in ("alone", "averaged"):
            described[name] = described[name].model_dump()
        lost = sites.describe_alone(pool, [type(alone[0])([], ["none"], [3], 1)])
        made[f"alone, {unit}"] = [described, lost]
    many = np.repeat([0, 1, 2], [30, 12, 3])
    for split in ("equal", "sizes", "labels"):
        for count in (2, 11, 45):
            parts = sites.split_units(many, count, split, 7)
            made[f"{split} {count}"] = [np.concatenate(parts), np.array([*map(len, parts)])]
        made[f"{split} 46"] = or_error(sites.split_units, many, 46, split, 7)
    check_values("sites", made, rel=1e-3)


def test_embeddings_are_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(tsne, "ANCHORS", 25)
    settings: dict[str, dict[str, Any]] = {
        "all": {"rows": 40},
        "sample": {"rows": 80, "points": 50},
        "few": {"rows": 9},
        "ten": {"rows": 10},
        "labels": {"rows": 50, "several": True},
        "equal": {"rows": 30},
    }
    for name, given in settings.items():
        features, labels = clouds(given["rows"], 12, 4, several=given.get("several", False))
        features = features * (name != "equal")
        manifest = write_store(tmp_path / name, features, labels, class_names=tuple("abcd"))
        options = {"points": given.get("points", 60), "perplexity": 9.0, "components": 3}
        output = tmp_path / f"{name}.parquet"
        tsne.embed_tsne(manifest, output, options=options, seed=3, threads=1)
        table, facts = tsne.read_embedding(output)
        facts = without(facts, "openTSNE", "features", "tsne_agreement")
        made[name] = [table.drop_columns(["x", "y"]), facts, str(table.schema.types)]
    for wrong in ({}, {b"dpprobe": b'{"format": "dpprobe-embedding", "format_version": 0}'}):
        pq.write_table(table.replace_schema_metadata(wrong), output)
        made[f"not {len(wrong)}"] = or_error(tsne.read_embedding, output).replace(str(tmp_path), "")
    made["not"] = or_error(tsne.read_embedding, manifest).replace(str(tmp_path), "")
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(40, 20))
    anchors = np.arange(0, 40, 3)
    truth = tsne.find_nearest(rows, anchors)
    made["nearest"] = [np.sort(tsne.find_nearest(rows, anchors, k=k), axis=1) for k in (1, 4, 99)]
    for components, wanted in (
        (2, truth),
        (8, truth),
        (30, truth),
        (2, truth[::-1]),
        (12, truth[::-1]),
    ):
        reduced, kept = tsne._reduce_dimension(rows, anchors, wanted, components=components, seed=0)
        made[f"components {components} {wanted is truth}"] = [reduced.shape, kept]
    made["agreement"] = tsne.measure_agreement(truth[:, :4], truth[:, 2:9])
    made["samples"] = [tsne._draw_sample(20, points, 4) for points in (5, 19, 20, 21)]
    made["padded"] = [tsne._at_least_two_columns(np.ones((2, k))).tolist() for k in (1, 2, 3)]
    check_values("embeddings", made, rel=1e-4)
