"""The words of tables, headlines, the terminal and the report, over many studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.exhibits.tables import Column, Table, comma_separated, make_row, write_markdown
from dpprobe.reporting import declarations
from dpprobe.reporting.accuracy_table import make_accuracy_table
from dpprobe.reporting.console import LINES, describe_study
from dpprobe.reporting.headline import headline_lines
from dpprobe.reporting.report import statements, write
from dpprobe.reporting.report.shown_tables import ReportTable, study_tables
from dpprobe.results.best_private import best_private
from dpprobe.results.study_files import StudyFiles
from dpprobe.results.summary import read_grid, summarise_cells
from dpprobe.study.study_file import load_study
from tests.support.baseline_records import write_zero_shot
from tests.support.cell_files import BARE, write_cell, write_study
from tests.support.report_page import Made, write_summaries
from tests.support.stored_records import check_values

LABELS: dict[str, Any] = {"multi_label": True, "class_names": ("round", "even", "absent")}
EVERY = [[*range(11)]] * 3
SHARES = (0.7, 0.1, 0.1, 0.1)
LESIONS: dict[str, Any] = {"class_names": ("benign", "malignant"), "shares": (0.9, 0.1)}
SEARCH = {"search": {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}}


def _cells(root: Path, number: int, **options: Any) -> list[Path]:
    return [
        write_cell(root, method=f"m{k:02}", epsilon=e, quality=0.1 * k, **options)
        for k in range(number)
        for e in ("1", "inf")
    ]


def _change(paths: list[Path], **changes: Any) -> list[Path]:
    for path in paths:
        write_json(path, read_json(path) | changes)
    return paths


def _never(paths: list[Path], *seeds: list[int]) -> list[Path]:
    for path in paths:
        record = read_json(path)
        for seed, classes in zip(record["seeds"], seeds, strict=True):
            seed["never_predicted"] = classes
        write_json(path, record)
    return paths


def _write_studies(root: Path) -> dict[str, list[Path]]:
    cells = write_study(root / "plain", epsilons=("0.5", "2", "inf"))
    alone = [write_cell(root / "alone", epsilon=epsilon, seeds=1) for epsilon in ("0.5", "3")]
    many = [f"class {k}" for k in range(11)]
    return {
        "plain": cells[1:],
        "large": _change(_cells(root / "large", 2), n=200_000),
        "many": _cells(root / "many", 30),
        "alone": alone,
        "labels": [
            *_change([write_cell(root / "labels", **LABELS)], n=200_000),
            write_cell(root / "labels", method="nonprivate", epsilon="inf", **LABELS),
            write_cell(root / "labels", dataset="plain"),
            *_change([write_cell(root / "labels", dataset="large")], n=200_000),
        ],
        "lesions": [
            write_cell(root / "lesions", method=m, epsilon=e, rows=600, **LESIONS)
            for m, e in (("sgd", "1"), ("sgd", "4"), ("nonprivate", "inf"))
        ],
        "macro": [write_cell(root / "macro", headline="macro_accuracy", shares=SHARES)],
        "patients": [
            write_cell(root / "patients", patients=40, seeds=seeds, method=f"m{seeds}", quality=0.1)
            for seeds in (1, 3)
        ],
        "twelve": [
            write_cell(root / "twelve", dataset=f"d{k}", epsilon=e, rows=100, quality=0.2 * k)
            for k in range(12)
            for e in ("0.5", "1")
        ],
        "unpriced": [
            write_cell(root / "unpriced", quality=1.0),
            *_change(
                [write_cell(root / "unpriced", method="found", quality=9.0)],
                head="fine_tune",
                options=SEARCH,
            ),
            write_cell(root / "unpriced", method="sgd_full", quality=0.5),
        ],
        "equal": _change(
            [write_cell(root / "equal", method=m) for m in ("sgd", "sgd_full")],
            seeds=(record := read_json(cells[0]))["seeds"],
            summary=record["summary"],
        ),
        "never": [
            *_never(_cells(root / "never", 1), [0], [0, 1], [0]),
            *_never([write_cell(root / "never", dataset="a", class_names=many)], *EVERY),
            *_never([write_cell(root / "never", method="some")], [1], [1, 2], []),
            *_change(
                _never([write_cell(root / "never", method="even")], [3], [3], [3]),
                options={"head": "auto", "chosen": {"head": "sgd", "class_priors": "released"}},
            ),
        ],
        "weak": [
            write_cell(root / "weak", method=method, epsilon="inf", quality=quality)
            for method, quality in (("nonprivate", 0.2), ("sgd", 3.0))
        ],
        "risks": [
            *(
                write_cell(root / "risks", method=f"m{e}", epsilon=e, seeds=6)
                for e in ("1", "tpr-0.05-at-0.01", "inf")
            ),
            *_change(
                [write_cell(root / "risks", epsilon="tpr-0.05-at-0.01")],
                realised_epsilon=0.4,
                head="fine_tune",
                options=SEARCH,
            ),
            *_change([write_cell(root / "risks", epsilon="advantage-0.1")], realised_epsilon=0.3),
            write_cell(root / "risks", dataset="b", epsilon="2", headline="macro_accuracy"),
        ],
        "bare": _change(
            [
                *_cells(root / "bare", 1, rows=8),
                write_cell(root / "bare", epsilon="inf", method="nonprivate", rows=8),
            ],
            summary={"accuracy": BARE},
        ),
        "up to the constant": _change(
            [write_cell(root / "up to the constant")],
            summary={"accuracy": BARE | {"both_low": 0.2, "both_high": 0.265}},
        ),
        "all right": [
            write_cell(root / "all right", method=f"m{quality}", quality=quality)
            for quality in (1, 2, 40)
        ],
        "at the constant": _change(
            [write_cell(root / "at the constant")],
            summary={"accuracy": BARE | {"both_low": 0.265, "both_high": 0.3}},
        ),
        "none": [write_cell(root / "none", epsilon="inf")],
    }


def test_the_words_of_studies_are_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = {}
    for name, cells in _write_studies(Path()).items():
        folder = Path(name)
        datasets = list(dict.fromkeys(path.parts[-5] for path in cells))
        summaries = [folder / f"summary/{dataset}.parquet" for dataset in datasets]
        for dataset, summary in zip(datasets, summaries, strict=True):
            own = [path for path in cells if path.parts[-5] == dataset]
            summarise_cells(own, summary, study="study")
        if name in ("plain", "labels"):
            for file in ("report.html", "tables/accuracy.md"):
                (folder / file).parent.mkdir(exist_ok=True)
                (folder / file).touch()
            uri = "http://host/" if name == "labels" else "sqlite:///x/mlflow.db"
            pages = {"studies": "#/a"} if name == "plain" else {"summary": "#/b"}
            for file, of in (("digits", {"cells": "#/c"}), ("_study", pages)):
                write_json(folder / f"tracking/{file}.json", {"uri": uri, "pages": of})
        grid, table = read_grid(summaries), make_accuracy_table(summaries)
        bests = best_private(grid, {})
        console = describe_study(folder, summaries).splitlines()
        assert len(console) <= LINES
        answers[name] = {
            "console": console,
            "table": write_markdown(table).splitlines() if name != "twelve" else [],
            "numbers": comma_separated(table).splitlines() if name != "many" else [],
            "notes": [headline_lines(grid, bests, dataset) for dataset in grid.measures],
        }
    check_values("words_of_studies", answers)


SOURCE = {
    "source": "csv",
    "root": "/home/jane/scans",
    "class_names": {"0": "normal", "1": "ill"},
    "group_columns": ["sex"],
    "joins": [{"file": "a.csv", "first": True}],
    "split_seed": 0,
    "extract": {"patient": {"pattern": "/p([0-9]+)/"}},
}


def _page_words(page: Any) -> list[str]:
    """Returns the words and links of a page before the versions of libraries."""
    text = page.text.partition('<section id="provenance"')[0]
    kept = type(page)(
        text.partition("<main")[2].partition(">")[2].rpartition("</section>")[0] + "</section>"
    )
    links = [str(each["href"]) for each in kept.all("a")]
    words = kept.words.split()
    lines = [" ".join(words[start : start + 40]) for start in range(0, len(words), 40)]
    return [*lines, *links]


def test_the_report_has_the_stored_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Made(tmp_path / "one")
    info = made.sources.datasets["digits"]
    record = read_json(info)
    record["splits"]["test"]["per_class"][1:3] = 3, 0
    write_json(info, record | {"groups": ["sex"]})
    _never(sorted(made.results.glob("cells/digits/*/sgd*/*/metrics.json")), [0], [0, 2], [0])
    write_summaries(made.results)
    files = [write_zero_shot(made.results, backbone="a", auc=0.95)]
    files.append(write_zero_shot(made.results, backbone="b", accuracy=0.72))
    lesions = Made(tmp_path / "two", ("digits", "letters"), headline="auc", **LESIONS)
    lesions.study["datasets"]["digits"] = SOURCE
    info = lesions.sources.datasets["digits"]
    write_json(info, read_json(info) | {"source": SOURCE})
    clinic = Made(tmp_path / "three", patients=40)
    units = read_json(clinic.sources.datasets["digits"]) | {"units": {"train": 200, "test": 40}}
    write_json(clinic.sources.datasets["digits"], units)
    paper = Table(
        name="table_2",
        title="Table 2: accuracy of CLIP",
        columns=(Column(title="a", align="left"), Column(title="b")),
        rows=[make_row("c | d", "1")],
    )
    tables = study_tables(made.table_files, made.sources.summaries, None)
    tables.append(ReportTable(table=paper, files=[made.results / "tables/papers/table_2.md"]))
    pages = [made.page(zero_shot=files, tables=tables), lesions.page()]
    for path in sorted(clinic.results.glob("cells/*/*/*/eps-1/metrics.json")):
        record = read_json(path)
        record["cell"]["epsilon"] = "advantage-0.1"
        write_json(path, record | {"dimension": 32})
        path.parent.rename(path.parents[1] / "eps-advantage-0.1")
    write_summaries(clinic.results)
    monkeypatch.setattr(statements, "STATEMENTS_SHOWN", 3)
    monkeypatch.setattr(write, "CELLS_SHOWN", 4)
    pages.append(clinic.page(statements=sorted(clinic.results.glob("cells/**/privacy.json"))))
    assert "/home/jane" not in pages[1].text
    check_values("words_of_reports", [_page_words(page) for page in pages])


DIGITS = {"source": "sklearn", "name": "digits"}
PIXELS = {"family": "pixels"}
SGD = {"head": "sgd"}
CEILING = {"nonprivate": {"head": "nonprivate"}}
TUNED = {"head": "tuned", "base": SGD, "search": {"learning_rate": [0.1, 1.0]}, "trials": 3}
STUDIES: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "two datasets": {"datasets": {"a": DIGITS, "b": DIGITS | {"subsample": {"per_class": 20}}}},
    "two deltas": {"datasets": {"a": DIGITS, "b": DIGITS | {"delta": 1e-5}}},
    "three backbones": {"backbones": {f"p{k}": PIXELS for k in range(3)}},
    "no ceiling": {
        "backbones": {f"p{k}": PIXELS for k in range(3)},
        "methods": {"sgd": SGD},
        "datasets": {"a": DIGITS, "b": DIGITS | {"subsample": {"per_class": 20}}},
    },
    "two heads": {"methods": {"sgd": SGD, "prototypes": {"head": "prototypes"}}},
    "no noise": {"methods": {"sgd": SGD, **CEILING}, "epsilons": ["inf"]},
    "a search": {"methods": {"sgd": SGD, "tuned": TUNED}},
    "options": {
        "methods": {
            f"sgd_{size}_{scale:.0f}": SGD
            | {"batch_size": size, "init": "scaled", "init_scale": scale}
            for size in (16, 64)
            for scale in (0.1, 1.0)
        }
    },
    "a network": {
        "backbones": {
            "vit": {"family": "timm", "model": "vit_tiny_patch16_224", "pretrained": False}
        },
        "methods": {"sgd": SGD, "net": {"head": "fine_tune", "tune": "all"}},
    },
    "papers": {"datasets": {"cifar10": DIGITS, "mnist": DIGITS}},
    "sizes": {
        "backbones": {
            f"v{size}": {
                "family": "timm",
                "model": "vit_tiny_patch16_224",
                "pretrained": False,
                "preprocessing": {"size": size},
            }
            for size in (224, 192)
        }
    },
}


def test_exhibits_of_studies_are_as_stored() -> None:
    exhibits = [each for each in vars(declarations).values() if isinstance(each, Exhibit)]
    base: dict[str, Any] = {
        "datasets": {"digits": DIGITS},
        "backbones": {"pixels": PIXELS},
        "methods": {"sgd": SGD, **CEILING},
        "epsilons": [1, "inf"],
        "delta": 1e-4,
    }
    answers: dict[str, Any] = {}
    for title, changes in STUDIES.items():
        study = load_study(base | changes)
        files = StudyFiles(study, results="r")
        for exhibit in exhibits:
            places = exhibit.shown(study)
            if not places:
                continue
            params = {
                name: value(study, places[-1]) if callable(value) else value
                for name, value in exhibit.job_params.items()
                if name not in ("published", "version")
            }
            answers.setdefault(title, {})[exhibit.name] = {
                "places": [str(dict(place)) for place in places],
                "files": exhibit.list_files(study, "r", places[:1]),
                "needs": {
                    name: need.paths(files, places[-1])[:3] for name, need in exhibit.needs.items()
                },
                "params": {name: str(value) for name, value in params.items()},
            }
    check_values("exhibits_of_studies", answers)
