"""Every registered analysis declares what the contract asks for."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

from dpprobe.analyses.analysis import Analysis, Cost, JobSize
from dpprobe.analysis_registry import ANALYSES, load_analyses
from dpprobe.exhibits.make import find_function
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.versions import VERSIONS
from tests.conftest import REPOSITORY

EVERY = pytest.mark.parametrize("analysis", load_analyses(), ids=list(ANALYSES))
MEASURED = pytest.mark.parametrize(
    "analysis",
    [analysis for analysis in load_analyses() if analysis.measurement],
    ids=lambda analysis: analysis.name,
)
PLACE = {"dataset": "digits", "backbone": "pixels"}


@pytest.fixture(scope="module")
def study() -> Study:
    """A study that asks for every analysis whose rule is made from its declaration."""
    return load_study(
        {
            "study": "contract",
            "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
            "backbones": {
                "pixels": {"family": "pixels"},
                "clip": {"family": "open_clip", "model": "ViT-B-32", "pretrained": "openai"},
            },
            "methods": {
                "sgd": {"head": "sgd"},
                "least_squares": {"head": "least_squares"},
                "ceiling": {"head": "nonprivate"},
            },
            "epsilons": [1, "inf"],
            "delta": 1e-5,
            "long_tail": {},
            "sites": {},
            "fairness": {},
            "few_shot": {"backbones": ["pixels"]},
            "imbalance": {"datasets": ["digits"], "classes": ["3"], "fractions": [0.5]},
        }
    )


@EVERY
def test_a_declaration_stands_under_its_name(analysis: Analysis) -> None:
    registered = ANALYSES[analysis.name]
    package = importlib.import_module(registered.package)
    assert package.ANALYSIS is analysis
    assert registered.package == f"dpprobe.analyses.{analysis.name}"
    assert (analysis.folder, analysis.version) == (registered.folder, registered.version)
    assert VERSIONS[analysis.name] == registered.version
    assert analysis.describe.endswith(".")
    assert analysis.reads is None or (len(analysis.reads) == 2 and analysis.reads[1].endswith("."))
    assert package.__doc__


@MEASURED
def test_a_job_can_be_called_with_what_its_rule_gives(analysis: Analysis) -> None:
    declared = analysis.measurement
    assert declared is not None
    asked = inspect.signature(find_function(declared.job)).parameters
    params = {*declared.params, *(["options"] if analysis.options else []), "version"}
    outputs = {name or "output" for name in declared.outputs}
    offered = {*outputs, *params, *PLACE, "study", "folder", "threads"}
    read = {name for name, need in declared.needs.items() if need.read}
    assert read <= set(asked), "the job takes every file that it reads"
    required = {name for name, each in asked.items() if each.default is inspect.Parameter.empty}
    assert required <= read | offered


@MEASURED
def test_a_study_that_asks_gets_inputs_params_and_a_cost(analysis: Analysis, study: Study) -> None:
    declared = analysis.measurement
    assert declared is not None
    assert "digits" in analysis.datasets(study)
    backbones = analysis.backbones(study)
    place = {"dataset": "digits", "backbone": backbones[0]}
    files = StudyFiles(study)
    inputs = {name: need.paths(files, place) for name, need in declared.needs.items()}
    assert any(inputs.values())
    values: dict[str, Any] = {
        name: value(study, place) if callable(value) else value
        for name, value in declared.params.items()
    }
    assert None not in [value for name, value in values.items() if name != "metric"]
    size = JobSize(
        inputs=inputs, measure_mb=lambda paths: 2.0 * len(list(paths)), count_rows=lambda: (90, 10)
    )
    cost = declared.cost(study, place, size)
    assert isinstance(cost, Cost)
    assert min(cost) > 0
    made = analysis.list_files(study, "results", "digits")
    assert len(made) == len(declared.outputs) * len(backbones)
    assert analysis.list_files(study, "results", "elsewhere") == []


@EVERY
def test_an_analysis_has_a_page(analysis: Analysis) -> None:
    pages = (REPOSITORY / "docs").glob("*.md")
    key = "embeddings" if analysis.name == "tsne" else analysis.name
    assert any(key in page.read_text(encoding="utf-8") for page in pages)


def test_planning_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'pyarrow', 'matplotlib'}"
    program = (
        "import sys; from dpprobe.analysis_registry import load_analyses; load_analyses(); "
        f"print({heavy} & set(sys.modules), 'dpprobe.study.study' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "set() False\n"


def test_targets_and_rules_have_names_of_their_own() -> None:
    analyses = load_analyses()
    names = [analysis.target or analysis.name for analysis in analyses]
    names += [analysis.measurement.rule for analysis in analyses if analysis.measurement]
    names += [exhibit.name for analysis in analyses for exhibit in analysis.exhibits]
    assert len(set(names)) == len(names)
