"""The job that writes the report of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpprobe.analysis_registry import load_analyses
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.report.shown_tables import study_tables
from dpprobe.reporting.report.sources import Origin, Sources
from dpprobe.reporting.report.write import write_report
from dpprobe.resources import resource_path
from dpprobe.results.cell_record import STATEMENT_FILE, record_paths
from dpprobe.study.study import Study
from dpprobe.versions import clone_commit


def write_study_report(
    output: Path, study: Study, inputs: Mapping[str, Sequence[Path]], *, call: Sequence[str]
) -> None:
    """Writes the report of a study.

    Args:
      inputs: the files of other stages, by their names in the rule `write_report`.
      call: options of `snakemake` that select the study.

    Raises:
      DataError: if a file is not what its name says.
    """
    results = output.parent
    # If the papers' tables are inputs, the records that they were made from exist, too.
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
        names=study.part_names(),
        zero_shot=[path for path in inputs["zero_shot"] if path.suffix == ".json"],
        captions=sorted(resource_path("captions").glob("*.rst")),
    )
    origin = Origin(
        study=study.model_dump(mode="json"), results=results, call=call, commit=clone_commit()
    )
    write_report(output, sources, origin, template=resource_path("report"))
