"""Finished cells and studies become MLflow runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from dpprobe.errors import DataError, TrackingError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import write_json
from dpprobe.tracking import ingest
from dpprobe.tracking.runs import RunContents
from dpprobe.tracking.writer import Destination
from tests.support.audit_records import write_audit
from tests.support.baseline_records import write_few_shot, write_zero_shot
from tests.support.fairness_records import write_fairness
from tests.support.tracked_study import Study


def test_a_cell_without_history_or_record_is_refused(study: Study) -> None:
    study.cells[0].with_name("history.parquet").unlink()
    with pytest.raises(TrackingError, match="history.parquet"):
        study.ingest()
    study.cells[0].unlink()
    with pytest.raises(DataError, match="missing"):
        study.ingest()


class RecordingWriter:
    """Replaces a writer, and records its inputs: runs by experiment, pages and options."""

    location, runs = Path("r"), dict[str, str]()

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: dict[str, Any] = {}
        self.written: list[tuple[str, dict[str, RunContents], dict[str, Any]]] = []
        self.left: dict[str, Any] = {}
        self.views: dict[str, Any] = {}
        self.links: dict[str, str] = {}
        monkeypatch.setattr(ingest, "open_writer", self.open)
        monkeypatch.setattr(ingest, "leave_receipt", lambda *_, **named: self.left.update(named))

    @contextmanager
    def open(self, to: Destination, folder: str) -> Iterator[RecordingWriter]:
        self.opened = {**vars(to), "folder": folder}
        yield self

    def find_page(self, wanted: Any) -> str:
        return f"#{wanted.name} key=dpprobe"

    def link_artifacts(self, wanted: Any, key: str, path: str = "") -> str:
        return f"#{wanted.name} {key} {path}"

    def write(self, wanted: Any, contents: Any, **named: Any) -> str:
        self.written.append((wanted.name, {run.key: run for run in contents}, named))
        self.views[wanted.name] = wanted.views(frozenset())
        return f"#{wanted.name} key=dpprobe"

    def retire_datasets(self, names: Any) -> set[str]:
        return {"letters", "signs"} - {*names}


def _files(run: RunContents) -> list[str]:
    return [f"{folder}/{path.name}" for path, folder in run.artifacts]


@pytest.fixture
def parts(study: Study) -> dict[str, Any]:
    """Returns several files of each kind, most of them for the features of `pixels`."""
    root = study.root
    for name in ("b.png", "c.png", "d.png"):
        write_text(root / name, name)
    return {
        "figures": [root / f"{name}.png" for name in ("accuracy", "b", "d")],
        "commit": "c",
        "planes": {"pixels": root / "c.png"},
        "audits": [write_audit(root, epsilon=each) for each in ("2", "0.5")],
        "fairness": [write_fairness(root, backbone=each) for each in ("pixels", "scattering")],
        "zero_shot": [write_zero_shot(root, accuracy=0.7)],
        "few_shot": [write_few_shot(root, {1: 0.5})],
        "metrics_files": study.cells[::-1],
        "receipt": root / "receipt.json",
    }


@pytest.fixture
def noted(study: Study, monkeypatch: pytest.MonkeyPatch) -> RecordingWriter:
    write_text(study.root / "receipt.json", "{}")
    return RecordingWriter(monkeypatch)


def test_a_dataset_is_one_run_then_its_cells_then_its_summaries(
    study: Study, parts: dict[str, Any], noted: RecordingWriter
) -> None:
    study.ingest(**parts)
    (summary, whole, how), (cells, runs, _), (again, methods, more) = noted.written
    assert (summary, cells, again) == ("digits/summary", "digits", "digits/summary")
    assert [*whole] == ["study/digits"]
    assert how["describe"] is False, "its links do not exist yet"
    assert not how["outdates"]("study/digits/pixels/sgd"), "the other runs stay"
    assert more["outdates"]("study/digits/gone/sgd")
    assert not more["outdates"]("study/digits"), "which was written first"
    assert [*runs] == [
        *(f"study/digits/{'/'.join(path.parts[-4:-1])}" for path in study.cells),
        "study/digits/pixels/zero_shot",
        "study/digits/pixels/few_shot/1",
    ]
    (view,) = noted.views["digits/summary"].values()
    assert view["orderByKey"] == "metrics.`accuracy/eps_0.5`", "of methods, which have no epsilon"
    assert [*methods] == list(dict.fromkeys(key.rpartition("/")[0] for key in [*runs][:-2]))
    colours = [run.tags["mlflow.runColor"] for run in methods.values()]
    assert len(set(colours)) == len(colours) == 4
    assert {name: noted.opened[name] for name in ("study", "folder", "commit")} == {
        "study": "study",
        "folder": "digits",
        "commit": "c",
    }
    assert (noted.opened["lock"], noted.opened["uri"]) == (study.root / "lock", study.uri)


def test_a_run_has_its_own_files_and_the_dataset_s_run_has_what_all_share(
    study: Study, parts: dict[str, Any], noted: RecordingWriter
) -> None:
    study.ingest(**parts)
    (_, whole, _), (_, cells, _), (_, methods, _) = noted.written
    assert _files(whole["study/digits"]) == [
        *(f"figures/{name}.png" for name in ("accuracy", "b", "d", "c")),
        "tables/accuracy.md",
        *(f"fairness/{path.name}" for path in parts["fairness"]),
    ]
    assert not any(_files(run) for run in methods.values()), "disk grows with their number"
    for key, run in cells.items():
        audited = key in ("study/digits/pixels/sgd/eps-0.5", "study/digits/pixels/sgd/eps-2")
        assert any("audit/" in name for name in _files(run)) == audited, key
        kinds = {name.partition("/")[0] for name, _, _ in run.metrics}
        compared = "shot" not in key and "sgd/eps-inf" not in key  # the record omits the others
        assert ("fairness" in kinds) == compared, key


def test_one_epsilon_is_shown_next_to_baselines(
    study: Study, parts: dict[str, Any], noted: RecordingWriter
) -> None:
    study.ingest(**parts)
    (_, runs, _) = noted.written[1]
    beside = {key for key, run in runs.items() if run.tags.get("compared") == "true"}
    assert beside == {
        "study/digits/pixels/sgd/eps-0.5",
        "study/digits/pixels/zero_shot",
        "study/digits/pixels/few_shot/1",
    }, "of the features that have baselines, at the epsilon nearest to 1"
    assert [*noted.left["pages"]] == [
        "summary",
        "charts",
        "cells",
        "private",
        "all",
        "baselines",
        "baseline_charts",
    ]
    pages = noted.left["pages"]
    assert pages["private"] == "#digits key=dpprobe-private"
    assert pages["all"] == "#digits key=dpprobe-all"
    assert pages["charts"] == "#digits/summary key=dpprobe&compareRunsMode=CHART"
    assert pages["baseline_charts"] == "#digits key=dpprobe-baselines&compareRunsMode=CHART"
    plane = "#digits/summary study/digits /figures/c.png"
    assert noted.links == {
        "cells": pages["cells"],
        "charts": pages["charts"],
        "figures and tables": "#digits/summary study/digits ",
        "t-SNE of pixels": plane,
    }
    study.ingest(**parts | {"zero_shot": [], "few_shot": []})
    (_, runs, _) = noted.written[4]
    assert not any("compared" in run.tags for run in runs.values())


def test_a_dataset_is_finished_with_its_newest_result(
    study: Study, parts: dict[str, Any], noted: RecordingWriter
) -> None:
    for newest, given in (
        (study.cells[0], parts),
        (parts["zero_shot"][0], parts),
        (study.info, {"metrics_files": []}),
    ):
        for path in study.root.rglob("*.json"):
            os.utime(path, (50, 50))
        os.utime(newest, (99, 99))
        noted.written.clear()
        study.ingest(**given)
        assert noted.written[0][1]["study/digits"].finished == 99, newest


def test_a_study_links_to_its_datasets_and_forgets_those_it_no_longer_has(
    study: Study, noted: RecordingWriter
) -> None:
    root = study.root
    for name in ("tables/papers/p.md", "tables/t.md", "b.png"):
        write_text(root / name, name)
    for name in ("letters", "signs", "digits"):
        pages = {"cells": f"#{name}", "charts": f"#{name} chart", "all": "no link"}
        write_json(root / f"{name}.json", {"pages": pages})
    write_text(root / "_study.json", "{}")
    infos = {"digits": study.info, "letters": study.info, "new": study.info}
    study.ingest_whole(figures=[root / "b.png"], dataset_infos=infos, commit="d")
    ((name, runs, _),) = noted.written
    assert name == "all studies"
    assert _files(runs["study"]) == [
        "/report.html",
        "tables/papers/p.md",
        "tables/t.md",
        "figures/b.png",
    ]
    assert noted.links == {
        "cells of digits": "#digits",
        "charts of digits": "#digits chart",
        "cells of letters": "#letters",
        "charts of letters": "#letters chart",
    }
    assert (noted.opened["folder"], noted.opened["commit"]) == ("_study", "d")
    assert noted.left["pages"] == {"studies": "#all studies key=dpprobe"}
    left = {name for name in ("letters", "signs", "digits") if (root / f"{name}.json").exists()}
    assert left == {"letters", "digits"}, "the receipt of a dataset that is gone"


ZERO = "study/digits/pixels/zero_shot"


def baselines(root: Path, **accuracies: float) -> dict[str, Any]:
    few = {1: accuracies.get("one", 0.5), 16: 0.8, None: 0.9}
    return {
        "zero_shot": [write_zero_shot(root, accuracy=accuracies.get("zero", 0.7))],
        "few_shot": [write_few_shot(root, few)],
    }


def test_a_changed_baseline_renews_its_run_alone(study: Study) -> None:
    before = study.ingest(**baselines(study.root))["runs"]
    again = study.ingest(**baselines(study.root))
    assert (again["created"], again["replaced"]) == (0, 0)
    after = study.ingest(**baselines(study.root, zero=0.6))["runs"]
    assert {key for key, run in after.items() if before[key] != run} == {ZERO, "study/digits"}
    # all three probes are in one file
    last = study.ingest(**baselines(study.root, zero=0.6, one=0.4))["runs"]
    assert ZERO not in {key for key, run in last.items() if after[key] != run}


def read_notes(study: Study) -> dict[str, str]:
    """Returns the descriptions of experiments and runs, except the run with the t-SNE plots."""
    notes = dict[str, str]()
    for name in ("digits", "digits/summary"):
        notes[name] = study.find_experiment(name).tags["mlflow.note.content"]
        runs = study.runs(name)
        notes |= {key: run.data.tags["mlflow.note.content"] for key, run in runs.items()}
    del notes["study/digits"]
    return notes


def test_a_crash_before_links_are_renewed_is_repaired_by_the_next_run(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run with the t-SNE plots is replaced first, and every description links to it."""
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
