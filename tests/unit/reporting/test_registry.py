"""Exhibits are registered once, and each study makes its exhibits and its report."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits import exhibit as declaration
from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.exhibits.make import make_exhibit
from dpprobe.files.json_files import read_json, write_json
from dpprobe.reporting.console import describe_study
from dpprobe.reporting.registry import EXHIBITS
from dpprobe.reporting.report.write import write_study_report
from dpprobe.results.study_files import StudyFiles
from dpprobe.results.summary import summarise_cells
from dpprobe.study.study import Study
from tests.support.baseline_records import write_zero_shot
from tests.support.cell_files import write_cell, write_dataset_info
from tests.support.figures import write_embedding
from tests.support.report_page import Page

METHODS: dict[str, dict[str, Any]] = {
    "sgd": {"head": "sgd"},
    "sgd_64": {"head": "sgd", "batch_size": 64},
    "least_squares": {"head": "least_squares"},
    "nonprivate": {"head": "nonprivate"},
}
EPSILONS = (0.01, 0.5, 1, 8, 100, "inf")
REPORTED = ("write_tables", "write_dataset_table", "write_paper_tables")


class Drawn:
    """A random study (by seed), with stand-in results of all its jobs."""

    def __init__(self, root: Path, seed: int) -> None:
        draw = random.Random(seed)
        few = seed % 3 == 0  # as little as possible of everything
        datasets = draw.sample(["own", "cifar10", "mnist"], 1 if few else draw.choice([1, 2, 3]))
        backbones = draw.sample(["a", "b", "c"], 1 if few else draw.choice([1, 2, 3]))
        methods = draw.sample(list(METHODS), 1 if few else draw.choice([1, 2, 3, 4]))
        epsilons = draw.sample(EPSILONS, 1 if few else draw.choice([1, 2, 4]))
        self.results, self.data = root / "results", root / "data"
        self.study = Study.model_validate(
            {
                "datasets": {name: {"source": "sklearn", "name": "digits"} for name in datasets},
                "backbones": {name: {"family": "pixels"} for name in backbones},
                "study": "drawn",
                "methods": {name: METHODS[name] for name in methods},
                "epsilons": epsilons,
                "seeds": draw.choice([1, 2, 3]),
                "data_dir": str(self.data),
                "results_dir": str(self.results),
            }
        )
        self.files = StudyFiles(self.study, data=str(self.data), results=str(self.results))
        # a record may have another metric than the cells
        self.zero_shot = [
            write_zero_shot(self.results, dataset=name, accuracy=0.7)
            for name in datasets[: not few]
        ]
        for name in datasets:
            self._write_dataset(name, draw)

    def _write_dataset(self, name: str, draw: random.Random) -> None:
        classes = draw.choice([2, 3, 5])
        several = draw.random() < 0.25
        alone = not several and draw.random() < 0.3  # one class has all test rows
        facts: dict[str, Any] = {
            "class_names": [f"class {k}" for k in range(classes)],
            "multi_label": several,
            "rows": draw.choice([8, 30] if several else [1, 2, 30]),
        }
        if alone:
            facts["shares"] = [1.0] + [0.0] * (classes - 1)
            facts["headline"] = "accuracy"
        elif not several and (classes > 2 or facts["rows"] < 30):
            facts["headline"] = draw.choice(["accuracy", "macro_accuracy"])
        if facts["rows"] == 30:
            facts["patients"] = draw.choice([None, 10])
        paths = []
        for cell in self.study.list_cells(name):
            path = write_cell(self.results, **cell._asdict(), seeds=self.study.seeds, **facts)
            options = self.study.methods[cell.method].model_dump(mode="json")
            write_json(path, read_json(path) | {"options": options, "head": options["head"]})
            paths.append(path)
        summarise_cells(paths, Path(self.files.locate_summary(name)), study="drawn")
        info = write_dataset_info(self.data / name / "dataset.json")
        record = read_json(info) | {"class_names": facts["class_names"], "multi_label": several}
        for split in record["splits"].values():
            split["per_class"] = [split["rows"], *[0] * (classes - 1)]
        write_json(info, record)
        for backbone in self.study.backbones:
            write_embedding(
                Path(self.files.locate_embedding(name, backbone)), classes=classes, rows=60
            )

    def make(self) -> list[Path]:
        """Makes all exhibits; returns their files."""
        return [path for exhibit in EXHIBITS for path in self._make(exhibit)]

    def _make(self, exhibit: Exhibit) -> list[Path]:
        places = exhibit.shown(self.study)
        for place in places:
            inputs = {
                name: [path for path in need.paths(self.files, place) if Path(path).exists()]
                for name, need in exhibit.needs.items()
            }
            outputs = {
                output.name: [f"{self.results}/{path.format(**place)}" for path in output.paths]
                for output in exhibit.list_outputs(self.study)
            }
            params = {
                name: value(self.study, place) if callable(value) else value
                for name, value in exhibit.job_params.items()
            }
            make_exhibit(
                exhibit,
                inputs=inputs,
                outputs=outputs,
                params=params,
                wildcards=place,
                read_study=lambda: self.study,
            )
        return [Path(path) for path in exhibit.list_files(self.study, str(self.results), places)]

    def report(self, figures: Sequence[Path]) -> str:
        """Writes the report; returns the summary for the terminal."""
        tables = [
            Path(path)
            for exhibit in EXHIBITS
            if exhibit.name in REPORTED
            for path in exhibit.list_files(self.study, str(self.results), exhibit.shown(self.study))
        ]
        inputs: dict[str, list[Path]] = {
            name: []
            for analysis in load_analyses()
            if analysis.section
            for name in analysis.section.needs
        }
        inputs |= {
            "summaries": [Path(path) for path in self.files.list_summaries()],
            "infos": [self.data / name / "dataset.json" for name in self.study.datasets],
            "manifests": [],
            "tables": tables,
            "figures": [path for path in figures if path.suffix == ".svg"],
            # as in the rule, with the predictions
            "zero_shot": [
                path.with_name(name)
                for path in self.zero_shot
                for name in ("metrics.json", "predictions.parquet")
            ],
        }
        write_study_report(self.results / "report.html", self.study, inputs, call=[])
        return describe_study(self.results, inputs["summaries"])


# The last seed has all methods, three datasets and few cells.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(10), 11, 38])
def test_every_study_is_shown(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(declaration.FORMATS, "figure", ("svg",))
    drawn = Drawn(tmp_path, seed)
    made = drawn.make()
    assert made
    assert all(path.stat().st_size for path in made)
    assert drawn.report(made).splitlines()[0]
    page = Page((drawn.results / "report.html").read_text(encoding="utf-8"))
    assert page.text.count("metrics.json --cores") == len(drawn.study.list_cells())
    assert any(each.get("class") == "statement" for each in page.all("details"))
    assert ("best zero-shot backbone" in page.words) == bool(drawn.zero_shot)


def test_each_exhibit_of_an_analysis_is_registered_once() -> None:
    count = Counter(exhibit.name for exhibit in EXHIBITS)
    assert set(count.values()) == {1}
    assert count.keys() >= {each.name for analysis in load_analyses() for each in analysis.exhibits}
