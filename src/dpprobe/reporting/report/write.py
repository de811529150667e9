"""Writes the report of a study."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpprobe.analyses.analysis import Analysis, Page
from dpprobe.analysis_registry import ANALYSES, load_analyses
from dpprobe.code_version import clone_commit
from dpprobe.counted_nouns import count_noun
from dpprobe.data.downloads.addresses import public_addresses
from dpprobe.data.table import DatasetInfo, read_info
from dpprobe.exhibits.html_page import content_policy, relative_path
from dpprobe.exhibits.make import find_function
from dpprobe.exhibits.tables import mark_code
from dpprobe.files.atomic_writes import write_text
from dpprobe.privacy.limits import INFINITE, rounded_up
from dpprobe.privacy.risk import budget_words
from dpprobe.project_files import resource_path
from dpprobe.reporting.headline import best_interval, majority_words, upper_first
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.report import sections, statements
from dpprobe.reporting.report.exhibits import Exhibits, figure_facts
from dpprobe.reporting.report.origin import collect_provenance, write_commands, write_release
from dpprobe.reporting.report.plans import plan_origin, plan_parts, unplanned_words
from dpprobe.reporting.report.shown_tables import study_tables
from dpprobe.reporting.report.sources import Origin, Sources
from dpprobe.results.best_private import Best, best_private, choose_highlights, list_best_columns
from dpprobe.results.cautions import list_cautions
from dpprobe.results.cell_files import STATEMENT_FILE
from dpprobe.results.cell_record import HEADLINES, record_paths
from dpprobe.results.summary import Grid, read_grid, read_summaries
from dpprobe.study.published_names import part_names
from dpprobe.study.study import Study

logger = logging.getLogger("dpprobe")

TEMPLATES = Path(__file__).parents[1] / "templates"
CELLS_SHOWN = 2000
SUBGROUPS = "subgroups"  # the anchor of the section on gaps between groups
NOT_PRIVATE = (
    ("This report", "its test results, t-SNE figures and fingerprints are computed from the data."),
    (
        "Features and their shards",
        "each row describes one example. Protect features like the data.",
    ),
    ("t-SNE and other figures of features", "drawn from the features, without noise."),
    (
        "Test results",
        "computed on the test split without noise. Keep test results private if the test examples "
        "are private.",
    ),
    ("Training losses and learning curves", "computed from the training examples, without noise."),
    (
        "Results at ε = ∞ and non-private baselines",
        "trained without noise. Heads at ∞ use their own optimiser; the baseline is logistic "
        "regression.",
    ),
    (
        "Zero-shot and few-shot baselines",
        "few-shot heads are trained on private images without "
        "noise. Zero-shot results are test results.",
    ),
    *(analysis.reads for analysis in load_analyses() if analysis.reads is not None),
    (
        "Selecting the best of several",
        "no guarantee below covers a choice of method, backbone or ε by results on private data. "
        "The first table states what publishing the best method and backbone by test results "
        "costs. No finite ε is known for a choice by loss curves or t-SNE.",
    ),
    (
        "Seeds, fingerprints and logs",
        "in benchmark mode, anyone with the seeds can subtract the noise.",
    ),
)


def write_study_report(
    output: Path, study: Study, inputs: Mapping[str, Sequence[Path]], *, call: Sequence[str]
) -> None:
    """Writes the report of a study; `inputs` has the files by name in the rule `write_report`.

    Raises DataError if a file does not have the content that its name implies.
    """
    results = output.parent
    # If the papers' tables exist, all records of the study exist.
    papers = any(path.parent.name == "papers" for path in inputs["tables"])
    run = Run.of_study(study, results) if papers else None
    sources = Sources(
        summaries=inputs["summaries"],
        statements=[
            path.with_name(STATEMENT_FILE) for path in record_paths(results, study.list_cells())
        ],
        datasets={path.parent.name: path for path in inputs["infos"]},
        manifests=inputs["manifests"],
        tables=study_tables(inputs["tables"], inputs["summaries"], run),
        figures=inputs["figures"],
        records={
            analysis.name: inputs[analysis.section.records]
            for analysis in load_analyses()
            if analysis.section is not None
        },
        names=part_names(study),
        zero_shot=[path for path in inputs["zero_shot"] if path.suffix == ".json"],
        captions=sorted(resource_path("captions").glob("*.rst")),
    )
    origin = Origin(
        study=study.model_dump(mode="json"), results=results, call=call, commit=clone_commit()
    )
    write_report(output, sources, origin)


def write_report(output: Path, sources: Sources, origin: Origin) -> None:
    """Writes the report's HTML page, with relative links to large figures."""
    origin = replace(origin, study=public_addresses(origin.study))
    grid = read_grid(sources.summaries)
    summary = read_summaries(sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in sources.datasets.items()}
    zero_shot = sections.zero_shot_results(sources.zero_shot)
    privacy = statements.read_statements(sources.statements, order=list(grid.measures))
    bests = best_private(grid, zero_shot)
    exhibits = Exhibits(sources, output.parent)
    cells = sections.list_cells(summary, privacy, origin)
    page = Page(grid=grid, names=sources.names, folder=output.parent)
    shown = make_sections(sources.records, page, exhibits)
    plans = plan_parts(grid, summary, infos, has_room=exhibits.has_room)
    chosen = choose_highlights(bests)
    cards = {
        best.dataset: _make_card(best, bests, grid, infos[best.dataset], plans, shown)
        for best in chosen
    }
    datasets = []
    for name, measure in grid.measures.items():
        ours = [each for each in bests if each.dataset == name]
        datasets.append(
            {
                "name": name,
                "measure": measure,
                "card": cards.get(name),
                "bests": ours,
                "reason": grid.reasons.get(name, ""),
                "majority": majority_words(ours[0].entry, measure) if ours else "",
                "plans": [part for part in plans if part["dataset"] == name],
                "figures": exhibits.list_figures(name, figure_facts(bests, name)),
                "tables": exhibits.list_tables(name),
                "cells": [cell for cell in cells if cell["dataset"] == name],
                "statements": [item for item in privacy if item.dataset == name],
            }
        )
    overview = {"figures": exhibits.list_figures(None, {}), "tables": exhibits.list_tables(None)}
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    text = (
        _make_environment()
        .get_template("report.html.j2")
        .render(
            study=origin.study,
            style=Markup(style),
            script=Markup(script),
            policy=content_policy(style, script),
            date=_format_date(sources.summaries),
            run=sections.what_was_run(origin.study, grid, infos, privacy, summary),
            bests=bests,
            first=bests if len(chosen) == 1 else chosen,
            candidates=statements.list_candidates(privacy, output.parent),
            has_zero_shot=bool(zero_shot),
            datasets=datasets,
            overview=overview,
            sections=shown,
            plan_origin=plan_origin(),
            cells_left_out=max(0, len(cells) - CELLS_SHOWN),
            statements_shown=statements.STATEMENTS_SHOWN,
            statements_count=len(privacy),
            cells_count=len(cells),
            not_covered=[
                *statements.common_limits([item.words.not_covered for item in privacy]),
                *[words for each in shown if (words := each["declared"].not_covered)],
            ],
            not_private=NOT_PRIVATE,
            provenance=collect_provenance(origin, infos, sources),
            linked=exhibits.linked,
            reproduce=write_commands(origin),
            release=write_release(origin, chosen[0]) if bests else None,
            relative=lambda path: relative_path(path, output.parent),
        )
    )
    write_text(output, text)
    logger.info("%s: %.1f MB, %d cells", output, output.stat().st_size / 1e6, len(cells))


def _make_card(
    best: Best,
    bests: Sequence[Best],
    grid: Grid,
    info: DatasetInfo,
    plans: Sequence[Mapping[str, Any]],
    shown: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    name = best.dataset
    places = ((part["dataset"], part["backbone"]) for part in plans)
    planned = dict(zip(places, plans, strict=True))
    grouped = {
        part["dataset"]
        for section in shown
        if section["declared"].anchor == SUBGROUPS
        for part in section["content"]
    }
    return sections.make_card(
        best,
        [each for each in bests if each.dataset == name],
        info,
        cautions=list(list_cautions(grid, name, columns=list_best_columns(bests, name))),
        # predictions start from linear heads, not from a fine-tuned network
        plan=None if best.entry.network else planned.get((name, best.backbone)),
        unplanned=unplanned_words(grid, name),
        subgroups=name in grouped,
    )


def make_sections(
    records: Mapping[str, Sequence[Path]], page: Page, exhibits: Exhibits
) -> list[dict[str, Any]]:
    """Makes the sections of analyses that have results, in the order of the page."""
    made = []
    declared = [each for each in load_analyses() if each.section and each.name in records]
    for analysis in sorted(declared, key=lambda each: each.section.place):
        section = analysis.section
        content = find_function(section.make)(records[analysis.name], page)
        if not content:
            continue
        if section.figures:
            for part in content:
                part["figures"] = exhibits.list_figures(part["dataset"], {}, section=section)
        made.append({"declared": section, "content": content})
    return made


def _make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([TEMPLATES, *map(find_folder, load_analyses())]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda value: f"{value:.1f}"
    environment.filters["loss"] = lambda value: f"{rounded_up(value):g}"
    environment.filters["best_interval"] = best_interval
    environment.filters["epsilon"] = lambda token: "∞" if token == INFINITE else budget_words(token)
    environment.filters["short"] = sections.one_line
    environment.filters["upper_first"] = upper_first
    environment.filters["coded"] = mark_code
    environment.filters["count"] = count_noun
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.globals["headlines"] = HEADLINES
    return environment


def find_folder(analysis: Analysis) -> Path:
    return Path(importlib.import_module(ANALYSES[analysis.name].package).__path__[0])


def _format_date(paths: Sequence[Path]) -> str:
    newest = max((path.stat().st_mtime for path in paths), default=0.0)
    return datetime.fromtimestamp(newest, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
