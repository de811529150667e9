"""What the jobs of analyses measure, over many settings, against stored answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpprobe.analyses.baseline_record import read_few_shot, read_zero_shot
from dpprobe.analyses.few_shot import measure as few_shot
from dpprobe.analyses.imbalance import measure as imbalance
from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord
from dpprobe.analyses.representation_law import law_measures
from dpprobe.analyses.representation_law import measure as law_measure
from dpprobe.analyses.sites import measure as sites
from dpprobe.analyses.tsne import measure as tsne
from dpprobe.analyses.zero_shot import measure as zero_shot
from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import DataError
from dpprobe.heads.registry import method_options
from dpprobe.results.cell_record import CellName
from dpprobe.study.study import Study
from tests.support.cell_files import write_cell, write_dataset_info
from tests.support.clouds import clouds, further_columns
from tests.support.columns import by_column, flatten, or_error
from tests.support.imbalance_records import rare_cell
from tests.support.stored_records import check_values
from tests.unit.analyses.representation_law.test_measure import make_laws
from tests.unit.analyses.sites.test_measure import HEAD, read_pool, simulate, write_rows
from tests.unit.analyses.tsne.test_measure import write_store
from tests.unit.analyses.zero_shot.test_measure import write_text


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def test_representation_laws_are_as_stored(tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    for name, (rows, columns, classes) in {
        "tall": (60, 5, 3),
        "wide": (20, 40, 2),
        "square": (30, 30, 4),
        "one class": (20, 3, 1),
    }.items():
        x, labels = clouds(rows, columns, classes)
        others, other_labels = clouds(15, columns, classes, seed=1)
        made[name] = [
            flatten(vars(law_measures.measure_scatter(x, labels))),
            flatten(
                vars(
                    law_measures.measure_residuals(
                        x, labels, held_out=others, held_out_labels=other_labels
                    )
                )
            ),
        ]
    x, labels = np.eye(3, 8)[np.arange(12) % 3], np.arange(12) % 3
    for name, each in {
        "equal": np.ones((12, 2)),
        "exact": x,
        "same means": np.repeat(x[:4], 3, 0),
        "no number": x * np.inf,
        "zeros": 0 * x,
    }.items():
        with np.errstate(invalid="ignore"):
            made[name] = [
                flatten(vars(law_measures.measure_scatter(each, labels))),
                flatten(
                    vars(
                        law_measures.measure_residuals(
                            each, labels, held_out=each, held_out_labels=labels
                        )
                    )
                ),
            ]
    series: list[list[float | None]] = [
        [1.0, 0.5, 0.25],
        [1.0, None, 0.5, 0.2, 1e-9, 1e-12],
        [2.0] * 4,
        [None, 1.0, 3.0],
        [0.9, 0.7, 0.8, 0.1, 0.05],
    ]
    made["laws"] = [
        [law and law.model_dump(), fault]
        for law, fault in (law_measures.fit_law(range(len(values)), values) for values in series)
    ]
    cloud: Any = clouds(30, 5, 3)
    made["a class alone"] = law_measure._measure_values(
        cloud[0], cloud[0], {"train": cloud[1], "test": 0 * cloud[1]}
    )[2]
    record = make_laws(tmp_path, rows=60, seed=3).model_dump(mode="json")
    networks = record.pop("networks")
    for network in networks:
        made[f"series of {network['method']}"] = by_column(network.pop("series"))
    made["record"] = [without(record, "seconds"), networks]
    check_values("laws", made, rel=1e-3, abs=1e-7)


def write_info(path: Path, fraction: dict[str, float] | None, **changes: Any) -> Path:
    write_dataset_info(path)
    record = read_json(path)
    if fraction:
        record["source"]["subsample"] = {"fractions": fraction}
        record["splits"]["train"]["per_class"][1] = 25
    write_json(path, record | changes)
    return path


def test_rare_classes_are_as_stored(tmp_path: Path) -> None:
    classes = ("zero", "one", "two", "three")
    infos = {
        "digits": write_info(tmp_path / "a.json", None),
        "digits_one": write_info(tmp_path / "b.json", {"one": 0.1}),
    }
    made: dict[str, Any] = {}
    cells = [
        ("sgd", "1"),
        ("sgd", "3"),
        ("newton", "10"),
        ("newton", "inf"),
        ("nonprivate", "inf"),
    ]
    for name, kept in {
        "ceiling": cells,
        "none": cells[:4],
        "free": cells[4:],
        "one seed": cells[::4],
    }.items():
        folder = tmp_path / name
        shares = (0.6, 0.1, 0.3, 0.0) if name != "free" else (1.0, 0.0, 0.0, 0.0)
        for dataset in infos:
            for method, epsilon in kept:
                path = write_cell(
                    folder,
                    dataset=dataset,
                    method=method,
                    epsilon=epsilon,
                    seeds=1 if name == "one seed" else 3,
                    shares=shares,
                    quality=1.5 + 3 * (method == "nonprivate") - (name == "none"),
                    patients=40 if name == "none" else None,
                )
                if name == "none":
                    file = path.with_name("predictions.parquet")
                    table = pq.read_table(file)
                    units = np.tile(np.arange(200) % 40, 3)
                    pq.write_table(table.append_column("unit", [units]), file)
        names = [
            CellName(dataset=dataset, backbone="pixels", method=method, epsilon=epsilon)
            for dataset in infos
            for method, epsilon in kept
        ]
        imbalance.imbalance_job(
            names,
            cells=folder / "cells",
            infos=infos,
            dataset="digits",
            backbone="pixels",
            classes=["three", "one", "zero"],
            folder=folder,
        )
        record = ImbalanceRecord.read(folder / "digits/pixels.json").model_dump(mode="json")
        rows = record.pop("cells")
        made[name] = [record.pop("break_downs"), record, by_column(rows)]
    given: dict[str, Any] = {
        "cells": tmp_path,
        "dataset": "digits",
        "backbone": "b",
        "folder": tmp_path,
    }
    made["unknown"] = or_error(imbalance.imbalance_job, [], infos=infos, classes=["four"], **given)
    wrongs: dict[str, Any] = {
        "other": {"class_names": list(classes[::-1])},
        "several": {"multi_label": True},
    }
    for name, change in wrongs.items():
        wrong = infos | {name: write_info(tmp_path / "wrong.json", None, **change)}
        error = or_error(imbalance.imbalance_job, [], infos=wrong, classes=["one"], **given)
        made[name] = str(error).replace(str(tmp_path), "")
    check_values("rare_classes", made, rel=1e-5)


def test_shares_and_break_downs_of_rare_classes_are_as_stored() -> None:
    made: dict[str, Any] = {}
    made["shares"] = [
        imbalance.estimate_share(values, counted).model_dump()
        for values in ([0.5], [0.0] * 3, [0.1, 0.2, 0.4], [1.0, 1.0 - 1e-13], [0.9, 1.0])
        for counted in (1, 50)
    ]
    made["least"] = [imbalance.least_reference(classes) for classes in (2, 4, 19, 20, 21, 100)]
    scores = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32) * 9
    links: Any = ("sigmoid", "softmax", "none")
    made["against"] = [
        imbalance.one_against_rest(scores, k, link) for link in links for k in (0, 3)
    ]
    changes: Any = {"reference_recall": 0.6}
    made["retained"] = [
        imbalance.retained_recall(rare_cell(each, **changes)) for each in (0.0, 0.3, 0.9)
    ]
    points = [
        rare_cell(recall, class_rows=rows, epsilon=epsilon, method=method)
        for rows, epsilon, recall, method in (
            (100, "1", 0.1, "sgd"),
            (100, "2", 0.4, "sgd"),
            (300, "1", 0.39, "sgd"),
            (400, "1", 0.5, "sgd"),
            (50, "10", 0.6, "sgd"),
            (9, "1", 0.7, "other"),
        )
    ]
    points += [rare_cell(0.7, epsilon="inf"), rare_cell(0.7, reference_learnt=False)]
    points += [rare_cell(0.7, epsilon="advantage-0.1"), rare_cell(0.7, class_name="dog")]
    made["points"] = [
        imbalance.break_down(points[::step], class_name="cat", method=method).model_dump(
            mode="json"
        )
        for step in (1, -1, 2, 3)
        for method in ("sgd", "other", "none")
    ]
    check_values("rare_shares", made, rel=1e-5)


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


@pytest.mark.parametrize("several", [False, True])
def test_few_shot_probes_are_as_stored(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(few_shot, "BLOCK_ROWS", 7)

    def probe(*stores: Path, shots: Any = (1,), metric: Any = None, memory_mb: int = 1000) -> Any:
        few_shot.probe_few_shot(
            *stores,
            rows=tmp_path / "rows.parquet",
            record=tmp_path / "record.json",
            options={"shots": shots, "seeds": 2},
            metric=metric,
            seed=4,
            threads=1,
            memory_mb=memory_mb,
            dataset="d",
            backbone="b",
            study=cast("Study", SimpleNamespace(device="cpu")),
        )
        return read_few_shot(tmp_path / "record.json")

    for patients in (0, 40):
        stores = []
        for seed, split in enumerate(("train", "test")):
            features, labels = clouds(90, 5, 3, seed=seed, several=several, apart=3.0)
            units = [f"p{row * 7 % patients}" for row in range(90)] if patients else None
            stores.append(
                write_store(
                    tmp_path / f"{split}{patients}",
                    features,
                    labels,
                    class_names=tuple("abc"),
                    units=units,
                    **further_columns(labels),
                )
            )
        record = probe(*stores, shots=(1, 3, 4, "full"), memory_mb=0 if patients else 1000)
        results = by_column(record.pop("results"))
        rows = by_column(pq.read_table(tmp_path / "rows.parquet").to_pylist())
        made[f"{patients}"] = [without(record, "features", "files"), rows, results]
    one = write_store(tmp_path / "one", features, 0 * labels, class_names=tuple("abc"))
    made["no AUC"] = or_error(probe, stores[0], one, metric="auc").replace(str(tmp_path), "")
    even = write_store(tmp_path / "even", features, np.arange(90) % 3, class_names=tuple("abc"))
    made["headlines"] = [several or probe(stores[0], each)["headline"] for each in (even, *stores)]
    labels = clouds(40, 5, 4, several=several)[1]
    taken = np.arange(40) * 3 % 17
    made["draws"] = [
        few_shot.draw_shots(labels, count, seed, each)
        for count in (1, 5)
        for seed in (0, 1)
        for each in (None, taken)
    ]
    check_values(f"few_shot_{several}", made, rel=1e-3, abs=1e-4)


def test_zero_shot_classifiers_are_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(zero_shot, "BLOCK_ROWS", 7)
    for several in (False, True):
        for patients in (0, 30):
            features, labels = clouds(80, 6, 3, several=several, apart=1.0)
            features[0] = 0.0
            units = [f"p{row * 7 % patients}" for row in range(80)] if patients else None
            manifest = write_store(
                tmp_path / f"{several}{patients}",
                features,
                labels,
                class_names=tuple("abc"),
                units=units,
                **further_columns(labels),
            )
            for bias, metric in ((None, None), (-3.0, "macro_accuracy")):
                text = write_text(
                    tmp_path / "t",
                    np.eye(3, 6),
                    logit_bias=bias,
                    logit_scale=7.0,
                    class_names=tuple("abc"),
                )
                given: Any = {"metric": None if several else metric}
                zero_shot.classify_zero_shot(
                    manifest,
                    text,
                    metrics=tmp_path / "m.json",
                    predictions=tmp_path / "p.parquet",
                    dataset="d",
                    backbone="b",
                    model="tiny",
                    seed=1,
                    **given,
                )
                record = flatten(read_zero_shot(tmp_path / "m.json"))
                words = {
                    k: v
                    for k, v in record.items()
                    if isinstance(v, str | None) and k != "features" and not k.startswith("files")
                }
                numbers = {k: v for k, v in record.items() if not isinstance(v, str | None)}
                rows = by_column(pq.read_table(tmp_path / "p.parquet").to_pylist())
                made[f"{several} {patients} {bias}"] = [words, numbers, without(rows, "id")]
    manifest = write_store(tmp_path / "one", features, 0 * labels, class_names=tuple("abc"))
    made["no AUC"] = or_error(
        zero_shot.classify_zero_shot,
        manifest,
        text,
        metrics=tmp_path / "n.json",
        predictions=tmp_path / "n.parquet",
        dataset="d",
        backbone="b",
        model="tiny",
        seed=1,
        metric="auc",
    ).replace(str(tmp_path), "")
    assert not (tmp_path / "n.parquet").exists()
    check_values("zero_shot", made, rel=1e-4)
