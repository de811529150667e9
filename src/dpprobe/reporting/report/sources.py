"""The content of the report, and the origin of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpprobe.reporting.report.shown_tables import ReportTable


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The content of a report: files from other stages, and tables."""

    summaries: Sequence[Path]
    statements: Sequence[Path]  # privacy.json of the cells
    datasets: Mapping[str, Path]  # name: dataset.json
    manifests: Sequence[Path] = ()  # manifest.json of the training features
    tables: Sequence[ReportTable] = ()
    figures: Sequence[Path] = ()  # figures/<dataset>/<name>.svg and .png, or figures/<name>
    zero_shot: Sequence[Path] = ()
    records: Mapping[str, Sequence[Path]] = field(default_factory=dict)  # by name of analysis
    names: Mapping[str, str] = field(default_factory=dict)  # datasets' names in published numbers
    captions: Sequence[Path] = ()  # <prefix of a figure's or table's name>.rst


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of the results: the study, the folder, the call and the commit."""

    study: Mapping[str, Any]  # the checked study, with defaults filled in
    results: Path
    call: Sequence[str] = ()  # options of `snakemake` that select the study
    commit: str | None = None
