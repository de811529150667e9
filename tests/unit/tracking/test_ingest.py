"""MLflow runs from finished cells and studies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from dpprobe.artifacts import read_json, write_json, write_text
from dpprobe.errors import DataError, TrackingError
from dpprobe.tracking import ingest
from tests.support.audit_records import write_audit
from tests.support.baseline_records import write_few_shot, write_zero_shot
from tests.support.fairness_records import write_fairness
from tests.support.mlflow_server import serve
from tests.support.stored_records import check_values
from tests.support.tracked_study import Study


def test_a_cell_without_history_or_record_is_refused(study: Study) -> None:
    study.cells[0].with_name("history.parquet").unlink()
    with pytest.raises(TrackingError, match="history.parquet"):
        study.ingest()
    study.cells[0].unlink()
    with pytest.raises(DataError, match="missing"):
        study.ingest()


class Noted:
    """Stands for a writer, and notes what it is given."""

    location, runs = Path("r"), dict[str, str]()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes: list[Any] = []
        self.links: dict[str, str] = {}

    @contextmanager
    def open(self, **named: Any) -> Iterator[Noted]:
        self.notes.append(
            {key: str(each).replace(str(self.root), "") for key, each in named.items()}
        )
        yield self

    def find_page(self, wanted: Any) -> str:
        return f"#{wanted.name} key=dpprobe"

    def link_artifact(self, wanted: Any, key: str, path: str) -> str:
        return f"#{wanted.name} {key} {path}"

    def write(self, wanted: Any, contents: Any, **_: Any) -> str:
        described = {
            run.key: [
                [f"{folder}/{path.name}" for path, folder in run.artifacts],
                run.finished,
                {name: tag for name, tag in run.tags.items() if "fingerprint" not in name},
                sorted({name.partition("/")[0] for name, _, _ in run.metrics}),
            ]
            for run in contents
        }
        self.notes.append([wanted.name, str(wanted.location), described])
        return f"#{wanted.name} key=dpprobe"

    def retire_datasets(self, names: Any) -> set[str]:
        return {"letters", "signs"} - {*names}


def test_what_is_written_is_as_stored(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several files of each kind, of which one backbone has more than the other."""
    root, noted = study.root, Noted(study.root)
    monkeypatch.setattr(ingest, "open_writer", noted.open)
    monkeypatch.setattr(
        ingest, "leave_receipt", lambda _, writer, **named: writer.notes.append(named | {"uri": ""})
    )
    for name in ("b.png", "c.png", "d.png", "b.md", "tables/papers/p.md", "tables/t.md"):
        write_text(root / name, name)
    info = read_json(study.info)
    info["splits"]["test"]["per_class"] = [100, 0, 100, 0]
    write_json(study.info, info)
    more: dict[str, Any] = {
        "figures": [root / "accuracy.png", root / "b.png"],
        "commit": "c",
        "embeddings": {"pixels": [root / "c.png", root / "d.png"]},
        "comparisons": [root / "d.png", root / "c.png"],
        "audits": [write_audit(root, epsilon=each) for each in ("2", "0.5")],
        "fairness": [write_fairness(root, backbone=each) for each in ("pixels", "scattering")],
        "zero_shot": [write_zero_shot(root, accuracy=0.7)],
        "few_shot": [write_few_shot(root, {1: 0.5})],
        "metrics_files": study.cells[::-1],
    }
    for newest in (study.cells[0], more["zero_shot"][0], study.info):
        for path in root.rglob("*.json"):
            os.utime(path, (50, 50))
        os.utime(newest, (99, 99))
        study_parts = more if newest != study.info else {"metrics_files": []}
        write_text(root / "receipt.json", "{}")
        study.ingest(**study_parts)
    for name in ("letters", "signs", "digits"):
        pages = {"cells": f"#{name}", "charts": f"#{name} chart"}
        write_json(root / f"{name}.json", {"pages": pages})
    write_text(root / "_study.json", "{}")
    os.utime(root / "receipt.json", (50, 50))
    write_text(root / "report.html", "report")
    os.utime(root / "report.html", (77, 77))
    infos = {"digits": study.info, "letters": study.info}
    study.ingest_whole(figures=[root / "b.png", root / "c.png"], dataset_infos=infos, commit="d")
    left = [name for name in ("letters", "signs", "digits") if (root / f"{name}.json").exists()]
    check_values("ingested", [noted.notes, left])


@pytest.mark.slow
def test_runs_are_written_through_a_server(study: Study) -> None:
    store = study.root / "store"
    store.mkdir()
    (study.root / "mlflow.db").rename(store / "mlflow.db")
    with serve(store) as study.uri:
        assert study.ingest()["created"] == 13
        assert study.ingest()["kept"] == 13
        run = study.runs()["study/digits/pixels/sgd/eps-2"]
        listed = [item.path for item in study.client.list_artifacts(run.info.run_id)]
    assert listed == ["confusion", "metrics.json", "privacy.json"]
    assert (store / "server_artifacts").is_dir()
    assert not (study.root / "mlartifacts").exists()


ZERO = "study/digits/pixels/zero_shot"


def baselines(root: Path, **accuracies: float) -> dict[str, Any]:
    few = {1: accuracies.get("one", 0.5), 16: 0.8, None: 0.9}
    return {
        "zero_shot": [write_zero_shot(root, accuracy=accuracies.get("zero", 0.7))],
        "few_shot": [write_few_shot(root, few)],
    }


@pytest.fixture
def ingested(study: Study) -> Study:
    study.ingest(**baselines(study.root))
    return study


def test_one_view_has_the_baselines_and_the_cells_beside_them(ingested: Study) -> None:
    view = ingested.view("digits", "dpprobe-baselines")
    order = [f"{view['orderByKey']} DESC"]
    found = ingested.all_runs(filter_string=view["searchFilter"], order_by=order)
    assert {run.data.params["epsilon"] for run in found} == {"none", "0.5"}
    keys = {run.data.tags["result_key"] for run in found}
    assert len(found) == 5
    assert {key for key in keys if "/eps-" in key} == {"study/digits/pixels/sgd/eps-0.5"}
    values = [run.data.metrics["test/accuracy"] for run in found]
    assert values == sorted(values, reverse=True)
    first = ingested.view("digits")["searchFilter"]
    at = {run.data.params["epsilon"] for run in ingested.all_runs(filter_string=first)}
    assert at == {"0.5"}, "the first page compares cells at one epsilon"


def test_a_changed_baseline_renews_its_run_alone(study: Study) -> None:
    before = study.ingest(**baselines(study.root))["runs"]
    again = study.ingest(**baselines(study.root))
    assert (again["created"], again["replaced"]) == (0, 0)
    after = study.ingest(**baselines(study.root, zero=0.6))["runs"]
    assert {key for key, run in after.items() if before[key] != run} == {ZERO, "study/digits"}
    # the probe of one image and the other two are of one file
    last = study.ingest(**baselines(study.root, zero=0.6, one=0.4))["runs"]
    assert ZERO not in {key for key, run in last.items() if after[key] != run}


def read_notes(study: Study) -> dict[str, str]:
    """Returns the descriptions of experiments and runs, except of the run with the t-SNE plots."""
    notes = dict[str, str]()
    for name in ("digits", "digits/summary"):
        notes[name] = study.find_experiment(name).tags["mlflow.note.content"]
        runs = study.runs(name)
        notes |= {key: run.data.tags["mlflow.note.content"] for key, run in runs.items()}
    del notes["study/digits"]
    return notes


def test_every_description_leads_to_cells_charts_and_t_sne(study: Study) -> None:
    """A newcomer who clicks on any run or experiment gets to the pages of results."""
    (study.root / "tsne_pixels.png").write_bytes(b"picture")
    receipt = study.ingest()
    pages = receipt["pages"]
    whole = receipt["runs"]["study/digits"]
    described = read_notes(study)
    assert len(described) > 8
    for key, note in described.items():
        assert f"[cells]({pages['cells']})" in note, key
        assert f"[charts]({pages['charts']})" in note, key
        assert f"/runs/{whole}/artifacts/figures/tsne_pixels.png)" in note, key
        assert not note.startswith("["), "links come before the result"
    again = study.ingest()
    assert (again["created"], again["replaced"]) == (0, 0)
    assert again["kept"] == len(receipt["runs"])


def test_a_crash_before_links_are_renewed_is_repaired_by_the_next_run(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run with the t-SNE plots is replaced first, and every description links to this run."""
    before = study.ingest()["runs"]["study/digits"]
    write_text(study.root / "tsne_pixels.png", "drawn again")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_tag", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study.ingest()
    assert study.runs("digits/summary")["study/digits"].info.run_id != before
    assert all(f"/runs/{before}/" in note for note in read_notes(study).values())
    after = study.ingest()["runs"]["study/digits"]
    assert after != before
    assert all(f"/runs/{after}/artifacts" in note for note in read_notes(study).values())
