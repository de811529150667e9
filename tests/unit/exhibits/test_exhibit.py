"""The contract of an exhibit, checked for each exhibit of the project."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from dpprobe import project_files
from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.exhibits.make import FOLDER, PUBLISHED, RESULTS, STUDY, find_function
from dpprobe.reporting.registry import EXHIBITS
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.versions import VERSIONS

NAMED = [pytest.param(exhibit, id=exhibit.name) for exhibit in EXHIBITS]
CONFIG = Path(__file__).resolve().parents[3]

STUDIES = [CONFIG / "config.yaml", *sorted((CONFIG / "config").glob("*.yaml"))]


def read_study(path: Path) -> Study:
    return load_study(yaml.safe_load(path.read_text()))


def small_exhibit(**changes: object) -> Exhibit:
    values: dict[str, object] = {
        "name": "plot_small",
        "kind": "figure",
        "files": {"": "figures/{dataset}/small", "law": "figures/{dataset}/small_law"},
        "needs": {},
        "make": "dpprobe.exhibits.make:find_function",
        "words": "small",
        "category": "Small",
        "caption": {"": "a.rst", "law": "b.rst"},
        "group_labels": {"law": {"figure": "law"}},
    }
    return Exhibit(**(values | changes))  # type: ignore[arg-type]


def test_the_caption_labels_and_version_follow_from_the_name_the_paths_and_the_kind() -> None:
    (_, png) = small_exhibit(files={"": "figures/x"}, caption="").list_outputs(None)
    assert (png.caption, png.labels) == ("small.rst", {})
    named = small_exhibit(files={"": "figures/x"}, labels={"a": "b"}, params={"name": 1})
    assert named.list_outputs(None)[1].labels == {"a": "b"}
    assert named.job_params == {"version": VERSIONS["figures"], "name": 1}


def test_exhibit_declarations_import_no_heavy_packages() -> None:
    program = """
import sys
import dpprobe.reporting.registry
print({name for name in ("torch", "numpy", "matplotlib", "pyarrow") if name in sys.modules})
"""
    assert subprocess.check_output([sys.executable, "-c", program]) == b"set()\n"


@pytest.mark.parametrize("exhibit", NAMED)
def test_each_exhibit_is_made_only_from_its_declared_needs(exhibit: Exhibit) -> None:
    """The arguments of `make` are the needs, and values that every job has."""
    asked = set(inspect.signature(find_function(exhibit.make)).parameters)
    needs = {name for name, need in exhibit.needs.items() if need.read}
    assert needs <= asked
    given = {STUDY, RESULTS, PUBLISHED, FOLDER, *exhibit.job_params, *exhibit.per}
    assert asked - needs <= given


@pytest.mark.parametrize("exhibit", NAMED)
def test_an_exhibit_has_a_caption_where_the_report_shows_it(exhibit: Exhibit) -> None:
    study = read_study(CONFIG / "config.yaml")
    outputs = exhibit.list_outputs(study)
    shown = [output for output in outputs if output.caption is not None]
    assert bool(shown) == (exhibit.category is not None)
    for output in shown:
        assert (project_files.resource_path("captions") / str(output.caption)).is_file()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_no_two_exhibits_of_a_study_make_the_same_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two exhibits make the same file, and the wildcards of each file are filled in."""
    monkeypatch.chdir(CONFIG)
    files = StudyFiles(read_study(path), results="r")
    made: Counter[str] = Counter()
    for exhibit in EXHIBITS:
        places = exhibit.shown(files.study)
        for place in places:
            assert set(exhibit.per) == set(place)
            assert all(place[name] in few(files.study) for name, few in exhibit.only.items())
        made.update(exhibit.list_files(files.study, "r", places))
    assert made
    assert max(made.values()) == 1
    assert not any("{" in name for name in made)
    assert f"r/figures/{next(iter(files.study.datasets))}/accuracy.svg" in made


def test_published_results_are_known_by_the_catalog_unless_told() -> None:
    """For a part of a dataset, only tables that match numbers of rows show published results."""
    part = {"catalog": "cifar10", "subsample": {"per_class": 20}}
    datasets = {"mine": {"catalog": "cifar10"}, "other": {"catalog": "mnist"}, "part": part}
    values = yaml.safe_load((CONFIG / "config.yaml").read_text()) | {"datasets": datasets}
    study = load_study(values | {"papers": {"datasets": {"other": "fashion_mnist"}}})
    named = {
        exhibit.name: exhibit.params["name"] for exhibit in EXHIBITS if "name" in exhibit.params
    }
    for exhibit, name in named.items():
        names = [name(study, {"dataset": dataset}) for dataset in study.datasets]
        whole = exhibit == "write_law_tables"
        assert names == ["cifar10", "fashion_mnist", "cifar10" if whole else "own part"]
