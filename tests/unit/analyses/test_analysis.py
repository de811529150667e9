"""Every registered analysis declares what its contract requires."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.analysis import Analysis, JobSize
from dpprobe.analyses.measuring import measure_analysis
from dpprobe.analysis_registry import ANALYSES, load_analyses
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.versions import VERSIONS
from tests.support.cell_files import DIMENSION, write_cell
from tests.support.feature_stores import write_split
from tests.unit.analyses.zero_shot.test_measure import write_text

EVERY = pytest.mark.parametrize("analysis", load_analyses(), ids=list(ANALYSES))
WITH_JOBS = [analysis for analysis in load_analyses() if analysis.measurement]
MEASURED = pytest.mark.parametrize("analysis", WITH_JOBS, ids=lambda analysis: analysis.name)
ROWS = 90


@pytest.fixture(scope="module")
def study() -> Study:
    """Returns a study with every analysis whose rule is made from its declaration."""
    heads = {"sgd": "sgd", "least_squares": "least_squares", "ceiling": "nonprivate"}
    clip = {"family": "open_clip", "model": "ViT-B-32", "pretrained": "openai"}
    return load_study(
        {
            "study": "contract",
            "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
            "backbones": {"pixels": {"family": "pixels"}, "clip": clip},
            "methods": {name: {"head": head} for name, head in heads.items()},
            "epsilons": [1, "inf"],
            "delta": 1e-5,
            "long_tail": {"clusters": [2]},
            "sites": {},
            "fairness": {},
            "group_gradients": {},
            "few_shot": {"backbones": ["pixels"], "shots": [1], "seeds": 1},
            "imbalance": {"datasets": ["digits"], "classes": ["3"], "fractions": [0.5]},
        }
    )


@EVERY
def test_each_analysis_matches_its_entry_in_the_registry(analysis: Analysis) -> None:
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
def test_each_analysis_measures_a_small_study_within_the_requested_time(
    analysis: Analysis, study: Study, tmp_path: Path
) -> None:
    declared = analysis.measurement
    assert declared is not None
    assert "digits" in analysis.datasets(study)
    backbones = analysis.backbones(study)
    place = {"dataset": "digits", "backbone": backbones[0]}
    files = StudyFiles(study, results=str(tmp_path))
    _write_inputs(files, place["backbone"])
    inputs = {name: need.paths(files, place) for name, need in declared.needs.items()}
    assert any(inputs.values())
    params: dict[str, Any] = {
        name: value(study, place) if callable(value) else value
        for name, value in declared.params.items()
    }
    if analysis.options is not None:
        block = study.block(analysis.options)
        assert block is not None
        params["options"] = block.model_dump(mode="json")
    outputs = [str(tmp_path / path.format(**place)) for path in declared.outputs.values()]
    started = time.process_time()
    measure_analysis(
        analysis,
        inputs=inputs,
        outputs=outputs,
        params=params | {"version": analysis.version},
        wildcards=place,
        threads=declared.threads,
        read_study=lambda: study,
    )
    seconds = time.process_time() - started
    assert all(Path(path).stat().st_size for path in outputs)
    size = JobSize(
        inputs=inputs,
        measure_mb=lambda paths: sum(Path(path).stat().st_size for path in paths) / 1e6,
        count_rows=lambda: (ROWS, ROWS // 2),
    )
    cost = declared.cost(study, place, size)
    # a busy machine may take minutes to start Python and import libraries
    assert 60 * cost.minutes > 300 + 20 * seconds
    assert cost.memory_mb > 500
    if analysis.name in ("fairness", "few_shot"):  # their work grows with the number of rows
        large = JobSize(inputs=inputs, measure_mb=lambda _: 1e4, count_rows=lambda: (10**6, 10**6))
        assert declared.cost(study, place, large).minutes > 60 + cost.minutes
    made = analysis.list_files(study, "results", "digits")
    assert len(made) == len(declared.outputs) * len(backbones)
    assert analysis.list_files(study, "results", "elsewhere") == []


def _write_inputs(files: StudyFiles, backbone: str) -> None:
    """Writes small features, text embeddings and cells of the dataset."""
    names = tuple("abc")
    generator = np.random.default_rng(0)
    for split, rows in (("train", ROWS), ("test", ROWS // 2)):
        labels = np.arange(rows) % len(names)
        features = generator.normal(size=(rows, DIMENSION)) + 2 * np.eye(DIMENSION)[labels]
        folder = Path(files.locate_manifest("digits", backbone, split)).parent
        write_split(
            folder,
            features.astype(np.float32),
            labels,
            class_names=names,
            backbone=backbone,
            backbone_options=files.study.backbones[backbone].extraction_params(),
        )
    write_text(folder.with_name("text.safetensors"), np.eye(3, DIMENSION), class_names=names)
    for cell in files.list_study_cells("digits"):
        if cell.backbone == backbone:
            write_cell(Path(files.results), **cell._asdict(), class_names=names)


def test_loading_analyses_imports_no_heavy_packages() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'pyarrow', 'matplotlib'}"
    program = (
        "import sys; from dpprobe.analysis_registry import load_analyses; load_analyses(); "
        f"print({heavy} & set(sys.modules), 'dpprobe.study.study' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program]) == b"set() False\n"


def test_targets_and_rules_have_names_of_their_own() -> None:
    analyses = load_analyses()
    names = [analysis.target or analysis.name for analysis in analyses]
    names += [analysis.measurement.rule for analysis in analyses if analysis.measurement]
    names += [exhibit.name for analysis in analyses for exhibit in analysis.exhibits]
    assert len(set(names)) == len(names)
