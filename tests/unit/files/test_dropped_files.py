"""Figures and tables that a study no longer has are removed; all other files stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpprobe.doctor.doctor_command import check_files
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.dropped_files import FOLDER, describe_removed, remove_dropped
from dpprobe.files.run_marks import MARKED
from dpprobe.files.written_files import JobRecord, list_changed, locate_record, read_written

BACKBONES = ("a", "b")


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes results of two backbones: a figure and a cell of each, and one figure of both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpprobe.files.written_files._EXTRA_FILES", set())
    folder = tmp_path / "results"
    monkeypatch.setenv(MARKED, json.dumps([str(folder), str(tmp_path / "data")]))
    for name in BACKBONES:
        write(folder, f"plot_tsne/d/{name}", f"figures/d/tsne_{name}.png", f"figures/d/{name}.html")
        write(folder, f"train_heads/d/{name}", f"cells/d/{name}/sgd/eps-1/history.parquet")
    write(folder, "plot_accuracy/d", "figures/d/accuracy.png")
    return folder


def write(results: Path, job: str, *names: str) -> None:
    files = [results / name for name in names]
    record = JobRecord(results / f"logs/{job}.log", files)
    for file in files:
        write_text(file, f"{file.name} of {job}")
    record.finish()


def shown(*backbones: str) -> list[str]:
    each = [f"figures/d/{name}" for of in backbones for name in (f"tsne_{of}.png", f"{of}.html")]
    return [*each, "figures/d/accuracy.png"]


def there(results: Path) -> set[str]:
    files = (path for path in results.rglob("[!.]*") if path.is_file())
    names = {path.relative_to(results).as_posix() for path in files}
    return {name for name in names if name[0] != "."}


def test_figures_of_a_removed_backbone_go_and_everything_else_stays(results: Path) -> None:
    before = there(results)
    assert remove_dropped(results, "s", shown("a", "b")) == []
    removed = remove_dropped(results, "s", shown("a"))
    gone = {"figures/d/tsne_b.png", "figures/d/b.html"}
    assert {path.relative_to(results).as_posix() for path in removed} == gone
    assert before - there(results) == gone
    first = f"such as {results}/figures/d/b.html"
    assert describe_removed(removed) == f"removed 2 files that the study no longer has, {first}"
    assert describe_removed(removed[:1]).endswith(
        f" 1 file that the study no longer has: {removed[0]}"
    )
    assert not locate_record(results / "logs/plot_tsne/d/b.log", results).exists()
    assert [each.path for each in check_files(results, None) if each.fault] == []
    write(results, "plot_tsne/d/b", "figures/d/tsne_b.png", "figures/d/b.html")
    assert remove_dropped(results, "s", shown("a", "b")) == []
    assert there(results) == before, "a backbone that came back"


def test_files_that_another_study_lists_stay(results: Path) -> None:
    remove_dropped(results, ["s", "/home/two.yaml"], shown("b"))
    remove_dropped(results, ["s", "/home/one.yaml"], shown("a", "b"))
    assert remove_dropped(results, ["s", "/home/one.yaml"], shown("a")) == []
    assert remove_dropped(results, ["s", "/home/two.yaml"], shown()) != []


@pytest.mark.parametrize("kind", ["edited", "foreign", "never listed"])
def test_edited_foreign_or_unlisted_files_are_not_removed(results: Path, kind: str) -> None:
    place = results / "figures/d/tsne_b.png"
    if kind != "never listed":
        remove_dropped(results, "s", shown("a", "b"))
    if kind == "edited":
        place.write_text("with an arrow")
    if kind == "foreign":
        locate_record(results / "logs/plot_tsne/d/b.log", results).unlink()
    removed = remove_dropped(results, "s", shown("a"))
    assert place not in removed
    assert place.exists()
    if kind == "edited":  # the job's other figure was removed
        record = locate_record(results / "logs/plot_tsne/d/b.log", results)
        assert [*read_written(record)] == ["figures/d/tsne_b.png"]
    assert list_changed(locate_record(results / "logs/plot_accuracy/d.log", results), results) == []


def test_a_damaged_list_of_files_removes_no_file(results: Path) -> None:
    remove_dropped(results, "s", shown("a", "b"))
    (listed,) = (results / FOLDER).iterdir()
    for text in ("", "[]", '{"files": 3}'):
        listed.write_text(text)
        assert remove_dropped(results, "s", shown("a")) == []
    assert there(results) >= {"figures/d/tsne_b.png"}
