"""Parts of reports over many settings: words, statements, commands, figures, as stored."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpprobe.artifacts import write_json
from dpprobe.data.table import DatasetInfo, read_info
from dpprobe.exhibits import style
from dpprobe.exhibits.tables import Column, Table, make_row, write_markdown
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.figures import planner
from dpprobe.reporting.report import exhibits, origin, plans, sections, statements, write
from dpprobe.reporting.report.shown_tables import ReportTable
from dpprobe.reporting.report.sources import Origin, Sources
from dpprobe.reporting.report.statements import Statement
from dpprobe.results.best_private import best_private
from dpprobe.results.summary import read_grid, read_summaries
from tests.support.figures import describe_figure
from tests.support.report_page import Made
from tests.support.stored_records import check_values

RISK = "tpr-0.05-at-0.01"


def _info(*test: int) -> DatasetInfo:
    counts = {"train": [9] * len(test), "test": list(test)}
    return DatasetInfo.model_validate(
        {
            "class_names": [f"c{number}" for number in range(len(test))],
            "multi_label": False,
            "groups": (),
            "fingerprint": "f",
            "source": {"source": "sklearn"},
            "splits": {
                name: {"rows": sum(each), "per_class": each, "fingerprint": "f", "sha256": "s"}
                for name, each in counts.items()
            },
        }
    )


def _statement(index: int, epsilon: str, *backbones: str, **content: Any) -> Statement:
    content = {"method": f"m{index}", "private": True, "epsilon_realised": 0.98761} | content
    cells = [(name, Path(f"r/cells/d/{name}/m/eps-{epsilon}/privacy.json")) for name in backbones]
    return Statement(
        dataset="d", epsilon=epsilon, anchor=f"statement-{index}", content=content, cells=cells
    )


def test_words_statements_and_commands_are_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "STATEMENTS_SHOWN", 2)
    options: tuple[dict[str, Any], ...] = (
        {"head": "auto", "normalize": "none"},
        {"head": "auto", "balanced": True, "rule": None},
        {"head": "sgd", "sizes": [1, {"e": False}, 0.5], "search": {}, "init": None, "a": True},
    )
    shown = [
        _statement(0, "1", "b", "a"),
        _statement(1, RISK, "a"),
        _statement(2, "1", "a"),
        _statement(3, "inf", "a"),
        _statement(4, "1", "a", private=False),
    ]
    captions = []
    for place, stem in enumerate(("fairness", "fairness_gap", "fair", "accuracy", "tsne")):
        captions.append(tmp_path / f"{stem}.rst")
        captions[-1].write_text(f"of\n {stem}  figures\n")
        os.utime(captions[-1], (1e9 + 70_000 * (place % 3),) * 2)
    names = ("accuracy", "tsne", "tsne_a_b", "by_backbone", "fairness_gap", "other_name", "fair")
    of = Origin(study={"releases": {}}, results=Path("r/x"), call=["--configfile", "a b.yaml"])
    made = replace(of, study={"releases": {"first": 1, "second": 2}}, call=[])
    best: Any = SimpleNamespace(dataset="d", backbone="a", method="m", epsilon="0.5")
    risk: Any = SimpleNamespace(**vars(best) | {"epsilon": RISK})
    manifests = [tmp_path / f"d{n}/b{n % 2}/train/manifest.json" for n in range(3)]
    for number, path in enumerate(manifests):
        weights = "w" if number % 2 else None
        write_json(path, {"features_sha256": f"f{number}", "weights_sha256": weights})
    none = Sources(summaries=[], statements=[], datasets={}, manifests=manifests)
    infos = {"d": _info(1), "e": _info(2)}
    proven = [
        origin.collect_provenance(replace(of, commit=commit), infos, none)
        for commit in (None, "abc")
    ]
    assert dict(proven[0]["versions"])["numpy"] == np.__version__
    near = {"near": 2, "rows": 3}
    answers = {
        "untested": [
            sections._name_untested(_info(*each))
            for each in ([1], [0, 1], [0] * 5 + [1], [0] * 6, [0] * 12)
        ],
        "sentences": [sections._end_sentence(each) for each in ("a", "A b.", "ε c")],
        "options": [sections._method_options(each) for each in options],
        "sources": [
            sections._describe_source(each)
            for each in (
                {},
                {"source": "csv"},
                {"source": "csv", "root": "x", "joins": [], "embed": False},
            )
        ],
        "numbers": [sections._format_number(each) for each in (None, math.nan, 0.0, 1.23451, 12)],
        "titles": [exhibits.title_of(name, of_it) for name in names for of_it in (None, "d")],
        "dates": [write._format_date(each) for each in (captions, captions[::-1], [])],
        "proven": [[each[key] for key in ("commit", "fingerprints", "config")] for each in proven],
        "captions": [exhibits._find_caption(name, captions) for name in names],
        "limits": [
            statements.common_limits([{"not_covered": list(each)} for each in lists])
            for lists in ([], ["cab"], ["cab", "bxc"], ["ab", ""])
        ]
        + [statements.common_limits([{"not_covered": ["a"]}, {}])],
        "near": [
            statements._near_duplicates(each)
            for each in ("not run", {"train": near, "test": near | {"near": 0}})
        ],
        "candidates": {
            str(key): value for key, value in statements.list_candidates(shown, Path("r")).items()
        },
        "budgets": [each.budget for each in shown],
        "commands": [
            origin.write_commands(replace(of, commit=each))
            for each in (None, "abc", "abc with local changes")
        ],
        "cells": [origin.cell_command(each, "d", "a", "m", "inf") for each in (of, made)],
        "releases": [
            origin.write_release(each, found) for each in (of, made) for found in (best, risk)
        ],
    }
    check_values("parts_of_reports", answers)


def test_figures_and_tables_of_reports_are_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of one dataset at the limits of size, and of all; datasets called like folders."""
    monkeypatch.setattr(exhibits, "SVG_BYTES", 10)
    monkeypatch.setattr(exhibits, "FIGURES_BYTES", 50)
    sizes = {
        "figures/tsne_a.svg": 5,
        "figures/accuracy.svg": 10,
        "figures/accuracy.png": 7,
        "figures/by_backbone.svg": 11,
        "figures/by_backbone.png": 20,
        "figures/zeta.svg": 12,
        "figures/alpha.png": 9,
        "large/tsne.svg": 2,
        "large/tsne_a.svg": 2,
        "datasets.svg": 3,
        "large/membership_x.svg": 1,
        "large/fairness_gap.svg": 4,
        "figures/fairness_gap.svg": 9,
        "other/deltas.svg": 1,
        "large/other/accuracy.svg": 1,
    }
    for name, size in sizes.items():
        path = tmp_path / "figures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    column = (Column(title="a"),)
    rows = {"a": ["1"], "again": ["1"], "long": [str(number) for number in range(60)]}
    tables = [
        ReportTable(
            table=Table(name=name, title="", columns=column, rows=[make_row(x) for x in each]),
            files=[tmp_path / f"tables/{name}.md", tmp_path / f"tables/{name}.csv"],
            dataset=of,
        )
        for name, each in rows.items()
        for of in ("figures", None)
    ]
    monkeypatch.setattr(exhibits, "TABLE_BYTES", len(write_markdown(tables[0].table)))
    figures = [tmp_path / "figures" / name for name in sizes]
    names = dict.fromkeys(("figures", "large"), tmp_path)
    sources = Sources(
        summaries=[], statements=[], datasets=names, tables=tables, figures=figures, captions=[]
    )
    shown = exhibits.Exhibits(sources, tmp_path)
    facts = {"accuracy": "Best.", "tsne": "Points."}
    section = exhibits.find_section("fairness_gap")
    answers = {
        str(of): [
            shown.list_figures(of, facts),
            shown.list_figures(of, {}, section=section),
            shown.list_tables(of),
        ]
        for of in ("figures", "large", None)
    }
    rest = [shown.linked, shown.bytes_left]
    rest += [[shown.has_room(size), shown.bytes_left] for size in (shown.bytes_left + 1, 1)]
    plain = json.loads(json.dumps([answers, rest]))  # the page's markup as text
    check_values("figures_of_reports", plain)


def test_plans_of_reports_are_as_stored(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the ends of the epsilons that can be planned, at a risk, from the better backbone."""
    monkeypatch.setattr(planner, "plan_svg", lambda *_, title, unit: f"{title}, {unit}".encode())
    grid = read_grid(made.sources.summaries)
    summary = read_summaries(made.sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in made.sources.datasets.items()}
    # new epsilons, with the share of the ceiling's lead over guessing that heads have there
    moved: dict[str, dict[float, tuple[float, float]]] = {
        "limits": {0.5: (0.009, 0.5), 1.0: (50.0, 0.985), 2.0: (100.0, 0.99)},
        "beyond": {0.5: (0.01, 0.03), 1.0: (50.1, 0.98), 2.0: (101.0, 0.99)},
        "risk": {1.0: (RiskEpsilon(0.9, RISK, 1e-5), 0.95), 0.5: (0.5, 0.8), 2.0: (2.0, 0.92)},
        "one misfit": {0.5: (0.5, 0.8), 1.0: (1.0, 0.2), 2.0: (2.0, 0.92)},
    }
    drawn: list[list[str]] = []

    def keep_figure(figure: Any) -> bytes:
        drawn.append(describe_figure(figure))
        return b""

    monkeypatch.setattr(style, "draw_svg", keep_figure)
    answers: dict[str, Any] = {}
    train = infos["digits"].splits["train"].model_copy(update={"rows": 5000})
    for name, epsilons in moved.items():
        if name == "risk":  # patients have several images
            update = {"units": {"train": 1000}, "splits": dict(infos["digits"].splits, train=train)}
            infos["digits"] = infos["digits"].model_copy(update=update)
        leads = {"pixels": 74.0, "scattering": 75.0 if name == "risk" else 70.0}
        entries = {}
        for (of, was, backbone, method), entry in grid.entries.items():
            at, share = epsilons.get(was, (was, 1.0))
            network = (name, was, method) == ("risk", 2.0, "sgd")
            share += 0.02 * ((was, backbone) == (0.5, "pixels"))
            entries[of, at, backbone, method] = replace(
                entry, mean=25 + share * leads[backbone] + network, network=network, least=None
            )
        rows = tuple(dict.fromkeys(key[:2] for key in entries))
        choices = dict.fromkeys(rows, grid.choices["digits", 1.0])
        new = replace(grid, rows=rows, entries=entries, choices=choices)
        parts = plans.plan_parts(new, summary, infos, has_room=lambda _: True)
        bests = best_private(new, {})
        bests[-1] = replace(bests[-1], ceiling=None)
        grouped = [
            {"declared": SimpleNamespace(anchor=anchor), "content": [{"dataset": "digits"}]}
            for anchor in ("sites", "subgroups")[: 1 + bool(drawn)]
        ]
        cards = [
            write._make_card(best, bests, new, infos["digits"], parts, grouped) for best in bests
        ]
        answers[name] = [parts, cards, drawn[-1]]
    check_values("plans_of_reports", answers)
