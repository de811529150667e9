"""What runs, views and charts say, over many kinds of cells, against stored answers."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.artifacts import read_json, write_json, write_text
from dpprobe.data.table import read_info
from dpprobe.results.cell_record import CellName, read_cell
from dpprobe.results.summary import read_grid, summarise_cells
from dpprobe.tracking import release_registry, runs, views
from dpprobe.tracking.baseline_runs import dataset_run, list_baseline_runs
from dpprobe.tracking.receipt import hash_rows
from tests.support.audit_records import MEMBERSHIP, write_audit
from tests.support.baseline_records import write_few_shot, write_zero_shot
from tests.support.cell_files import write_cell, write_dataset_info, write_study
from tests.support.fairness_records import APART, write_fairness
from tests.support.stored_records import check_values
from tests.support.tracked_study import Study

# Hashes, times and paths differ from run to run.
LEFT_OUT = {"content_hash", "artifacts", "drawn", "history", "inputs", "finished"}
EVALUATED = {"metric": "accuracy", "value": 0.8, "interval": [0.75, 0.9], "n": 40, "units": 40}
RELEASED = {
    "epsilon_target": 1.0,
    "epsilon_realised": 0.98761234,
    "allows": {"balanced_accuracy": 0.5, "true_positives": {"0.01": 0.02}},
}
MANY = [f"class {number}" for number in range(11)]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "infinite": {"epsilon": "inf"},
    "ceiling": {"method": "nonprivate", "epsilon": "inf", "backbone": "a_long_name_of_features"},
    "patients": {"patients": 40, "seeds": 1, "epsilon": "0.25"},
    "labels": {"multi_label": True, "class_names": ("round", "e/ven", "absent")},
    "two": {"class_names": ("no", "no"), "headline": "auc"},
    "macro": {"class_names": MANY, "headline": "macro_accuracy", "shares": [0.5, *[0.05] * 10]},
    "hundred": {"class_names": [f"c{number}" for number in range(100)]},
    "more": {"class_names": [f"c{number}" for number in range(101)]},
}


def _describe(run: runs.RunContents, *, drawn: bool = False) -> dict[str, Any]:
    """Returns what a run shows, and the names of its files."""
    shown = {f.name: getattr(run, f.name) for f in fields(run) if f.name not in LEFT_OUT}
    metrics = [f"{name} {value:.4g} {step}" for name, value, step in run.metrics]
    kept = [*metrics[:60], *metrics[60:][-40:]]
    shown["tags"] = {name: text for name, text in run.tags.items() if "fingerprint" not in name}
    texts = {name: write() for name, write in run.drawn.items()} if drawn else {}
    return shown | {
        "metrics": [len(metrics), kept],
        "files": [f"{folder}/{path.name}" for path, folder in run.artifacts],
        "drawn": {name: text[:1500].splitlines() for name, text in texts.items()} or [*run.drawn],
    }


def _write_cells(root: Path) -> dict[str, Path]:
    paths = {name: write_cell(root / name, **kind) for name, kind in KINDS.items()}
    for name in ("large", "never", "risk", "values"):
        paths[name] = write_cell(root / name, seeds=2, multi_label=name == "values")
        record = read_json(paths[name])
        if name == "risk":
            record["cell"]["epsilon"] = "tpr-0.01-at-0.001"
            statement = paths[name].with_name("privacy.json")
            write_json(statement, read_json(statement) | {"mode": "release"})
        if name == "values":  # scores with a threshold of their own
            record["options"] = {"head": "prototypes"}
        if name == "large":
            record |= {"n": 200_000, "realised_epsilon": 0.9912345678, "seconds": None}
            record["options"] |= {"init_scale": None, "flag": True, "size": [1, 2]}
        for number, seed in enumerate(record["seeds"] if name == "never" else []):
            seed["never_predicted"] = [2, 1][: number + 1]
        write_json(paths[name], record)
    return paths


def test_runs_of_cells_are_as_stored(tmp_path: Path) -> None:
    info = read_info(write_dataset_info(tmp_path / "dataset.json"))
    source = runs.dataset_input("digits", info)
    tags = {"study": "s"}
    answers: dict[str, Any] = {}
    for name, path in _write_cells(tmp_path).items():
        run = runs.cell_run(path, read_cell(path), "s", tags, source)
        answers[name] = _describe(run, drawn=name in ("plain", "labels", "two", "values"))
        if name in ("plain", "labels", "infinite"):
            assert run.history is not None
            answers[name]["curve"] = runs.curve_metrics(run.history)
    path = write_cell(tmp_path / "audited")
    audit = write_audit(tmp_path, membership=MEMBERSHIP)
    attacks = write_audit(tmp_path / "attacks", white_box=None, membership=MEMBERSHIP)
    rare = [row | {"tpr_at_fpr": {"0.01": 0.2}} for row in MEMBERSHIP["rows"]]
    others = [MEMBERSHIP | {"rows": rows} for rows in (rare, MEMBERSHIP["rows"][:2])]
    more = [write_audit(tmp_path / f"{n}", membership=each) for n, each in enumerate(others)]
    for file in (audit, attacks, write_audit(tmp_path / "games"), *more):
        found = file, AuditRecord.read(file)
        run = runs.cell_run(path, read_cell(path), "s", tags, source, found)
        answers[f"audited {len(answers)}"] = _describe(run)
    epsilons = ("0.5", "8", "10", "inf", "0.503")
    cells = write_study(tmp_path / "all", backbones=["b"], methods=["sgd"], epsilons=epsilons)
    for several in (cells, cells[:3], cells[3:4]):
        files = [(path, read_cell(path)) for path in several]
        run = runs.summary_run(files, "s", tags, [(several[0], "figures")], source)
        answers[f"summary of {len(several)}"] = _describe(run)
    labels = write_cell(tmp_path / "several", multi_label=True, class_names=("a", "b"))
    for path in (
        labels,
        tmp_path / "two/cells/digits/pixels/sgd/eps-1/metrics.json",
        tmp_path / "large/cells/digits/pixels/sgd/eps-1/metrics.json",
    ):
        run = runs.summary_run([(path, read_cell(path))], "s", tags, [], source)
        answers[f"summary of {path.parts[-7]}"] = _describe(run)
    gaps = read_json(write_fairness(tmp_path / "fair", gap=APART))
    first = gaps["cells"][0]["attributes"]
    for attributes in (first, [first[0] | {"gaps": {}}, first[1]], [first[0] | {"gaps": {}}]):
        one = gaps["cells"][0] | {"attributes": attributes}
        fairness = FairnessRecord.model_validate(gaps | {"cells": [one]})
        cell = CellName(dataset="digits", backbone="b", method="sgd", epsilon=one["epsilon"])
        answers[f"gaps {len(answers)}"] = runs._fairness_metrics(fairness, cell)
    check_values("runs_of_cells", answers)


def test_runs_of_studies_and_baselines_are_as_stored(tmp_path: Path) -> None:
    write_text(tmp_path / "report.html", "report")
    info = write_dataset_info(tmp_path / "dataset.json")
    source = runs.dataset_input("digits", read_info(info))
    cells = write_study(tmp_path, methods=("sgd", "sgd_full", "nonprivate"), epsilons=("2", "inf"))
    never = _write_cells(tmp_path / "kinds")["never"]
    answers: dict[str, Any] = {}
    for name, listed in {"6": cells, "1": cells[:1], "never": [never]}.items():
        summary = tmp_path / f"{name}.parquet"
        summarise_cells(listed, summary, study="s")
        artifacts = [(tmp_path / "report.html", ""), (summary, "tables")]
        infos = {"digits": info} | ({"letters": info} if listed == [never] else {})
        run = runs.study_run("study", read_grid([summary]), infos, artifacts)
        answers[f"study of {name}"] = _describe(run)
        assert [each.dataset.name for each in run.inputs] == [*infos]
    zero = [write_zero_shot(tmp_path, accuracy=0.7), write_zero_shot(tmp_path, backbone="b", auc=1)]
    prompts = {"set": "own", "templates": ["{c}", "a {c}"]}
    both = read_json(zero[0])["summary"] | read_json(zero[1])["summary"]  # the headline is second
    write_json(zero[1], read_json(zero[1]) | {"prompts": prompts, "summary": both})
    few = [write_few_shot(tmp_path / f"{n}", {1: 0.5, 16: 0.8, None: 0.9}) for n in range(2)]
    probes = read_json(few[1]) | {"backbone": "b", "headline": "auc"}
    for probe in probes["results"]:
        probe |= {"train_rows": [9, 8], "summary": both}
    write_json(few[1], probes)
    made = list_baseline_runs(zero, few, study="s", shared_tags={"study": "s"}, source=source)
    for run in made:
        answers[run.key] = _describe(run)
    whole = dataset_run(
        made,
        dataset="digits",
        study="s",
        shared_tags={"study": "s"},
        artifacts=[(zero[0], "f")],
        source=source,
        finished=0.0,
    )
    answers["dataset"] = _describe(whole)
    dataset = source.dataset
    answers["input"] = [dataset.name, dataset.source, dataset.source_type, dataset.profile]
    check_values("runs_of_studies", answers)


def test_names_and_numbers_of_runs_are_as_stored() -> None:
    seeds: list[dict[str, Any]] = [{"r": [0.5, None, 1.0, 0.25]}, {"r": [1.0, None, 0.0, 0.75]}]
    names = (
        ["a", "b", "c", "d"],
        ["a/", "a:", "a_", "a_ 1"],
        ["x", "x", "x", "."],
        ["a", "a", "a 1", "b"],
    )
    values = {"a": 0.123456, "b": None, "c": math.nan, "d": math.inf, "e": 1234567.0}
    words = [("sgd", "ε8", "b"), ("a" * 30, "ε0.5", "b" * 9), ("x" * 22,), ("x" * 23,), ("a", "")]
    rows = [("b", 0.5, 1), ("a", 1, 2), ("b", 0.25, 0), ("b", 0.75, 1), ("a", 1, 2)]
    answers = {
        "classes": [runs.class_metrics(each, seeds, "r") for each in names],
        "metrics": runs.list_metrics(values),
        "names": [runs.run_name(*each) for each in words],
        "steps": [
            runs.curve_steps(each)
            for each in ([1.0, 0.5, math.inf], [0.001, 0.002, 0.011], [8.004, 8.001, 8.02, 8.006])
        ],
        "metric names": [
            runs.metric_name(each) for each in ("a/b", ".", "..", " x ", "é", "a" * 101, "a,b:c-d")
        ],
        "options": runs.option_params({"a": 1, "b": None, "c": "x", "d": [1]}, {"a": "0"}),
        "bounds": runs.allows_metrics(
            {"balanced_accuracy": 0.51234567, "true_positives": {"0.01": 0.02345678, "0.1": 1}}
        ),
        "releases": [
            release_registry._list_metrics(RELEASED | {"evaluation": each})
            for each in (
                None,
                EVALUATED,
                EVALUATED | {"metric": "auc", "value": 0.1, "interval": [0.0, 1.0]},
            )
        ],
        "colours": [runs.pick_colour(index) for index in (0, 1, 19, 20, 21, 40)],
        "private": [
            runs._private_tag(each) for each in ([True], [False, False], [True, False], [])
        ],
        "rows": [
            hash_rows(rows, {"p": "1"}) == hash_rows(each, {"p": "1"})
            for each in (rows[::-1], rows[:4], rows[1:])
        ],
    }
    check_values("names_of_runs", answers)


def _shown(experiment: views.ExperimentContents, others: set[str]) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "note": experiment.note,
        "location": str(experiment.location),
        "views": experiment.views(others),
    }


def test_views_and_charts_are_as_stored(tmp_path: Path) -> None:
    info = read_info(write_dataset_info(tmp_path / "dataset.json"))
    source = runs.dataset_input("digits", info)
    zero = [write_zero_shot(tmp_path, accuracy=0.7)]
    baselines = list_baseline_runs(zero, [], study="s", shared_tags={}, source=source)
    answers: dict[str, Any] = {}
    for kind in ("plain", "labels", "macro"):
        epsilons, root = ("0.5", "8", "inf"), tmp_path / kind
        paths = [write_cell(root, **KINDS[kind] | {"epsilon": each}) for each in epsilons]
        records = [(path, read_cell(path)) for path in paths]
        cells = [runs.cell_run(*each, "s", {}, source) for each in records]
        whole = [runs.summary_run(records, "s", {}, [], source)]
        measure = records[0][1].measure
        for given, place in (([], None), (baselines, tmp_path)):
            made = views.cells_experiment("digits", place and Path("r"), cells, given, measure)
            answers[f"{kind}, {len(given)}"] = _shown(made, {"audit/epsilon_lower"})
        made = views.summary_experiment("digits", Path("r"), whole, measure)
        answers[f"{kind}, summary"] = _shown(made, {f"{measure.headline}/eps_10"})
    other = {f"d{k}/best_private_eps_{e}" for k in range(11) for e in ("0.1", "1", "2", "0.5", "8")}
    summary = tmp_path / "one.parquet"
    summarise_cells([paths[0]], summary, study="s")
    run = runs.study_run("s", read_grid([summary]), {}, [(summary, "")])
    answers["studies"] = _shown(views.studies_experiment(Path("r"), run), other)
    answers["no best"] = _shown(views.studies_experiment(None, replace(run, metrics=[])), set())
    answers["releases"] = _shown(views.releases_experiment(None), set())
    tokens: tuple[list[str], ...] = (
        ["0.5", "2"],
        ["0.1", "8", "inf"],
        ["inf"],
        [],
        ["10", "1", "0.9"],
        ["4", "0.25"],
    )
    answers["nearest"] = [views.nearest_to_one(each) for each in tokens]
    some = [f"a/best_private_eps_{e}" for e in (8, 0.125, 1, 2)]
    many = [f"d{k}/best_private_eps_{e}" for k in range(14) for e in (2, 1)]
    answers["columns"] = [
        views.best_columns(each) for each in ([], sorted(other), some, ["test/a"], many)
    ]
    check_values("views", answers)


def test_a_view_is_written_where_it_changed() -> None:
    view = {"selectedColumns": ["a"], views.NAME: "name"}
    first = views.changed_view(view, None)
    assert first is not None
    assert views.changed_view(view, first) is None
    for present in ("", "[]", "{", "{}", first.replace("name", "title"), "3"):
        assert views.changed_view(view, present) is not None
    for other in (view | {views.NAME: "b"}, view | {"selectedColumns": ["b"]}):
        assert views.changed_view(other, first) is not None
    assert views.view_tag("k") == "mlflow.sharedViewState.k"


def test_the_view_of_all_studies_has_columns_for_each(study: Study) -> None:
    study.ingest_whole()
    other = write_study(study.root / "other", dataset="letters", epsilons=("1", "4"))
    summary = study.root / "letters.parquet"
    summarise_cells(other, summary, study="second")
    study.ingest_whole(
        name="second",
        summaries=[summary],
        dataset_infos={"letters": study.info},
        receipt=study.root / "second.json",
    )
    best = [name for name in study.view("all studies")["selectedColumns"] if "best" in name]
    assert best == [
        f"metrics.`{dataset}/best_private_eps_{epsilon}`"
        for dataset, epsilons in (("digits", ("0.5", "2")), ("letters", ("1", "4")))
        for epsilon in epsilons
    ]


def test_cells_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    columns = study.view("digits")["selectedColumns"]
    assert "metrics.`privacy/noise_multiplier`" in columns
    other = write_study(study.root / "other", methods=["nonprivate"], epsilons=["inf"])
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    assert study.view("digits")["selectedColumns"] == columns
    other = write_study(study.root / "third", methods=["sgd"], epsilons=("8",))
    study.ingest(study="third", metrics_files=other, receipt=study.root / "third.json")
    columns = study.view("digits/summary")["selectedColumns"]
    assert [name for name in columns if "/eps_" in name] == [
        f"metrics.`accuracy/eps_{epsilon}`" for epsilon in ("0.5", "2", "8", "inf")
    ]
