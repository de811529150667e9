"""Writes the report of a study."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analysis_registry import load_analyses
        from dpprobe.reporting.paper_tables.common import Run
        from dpprobe.reporting.report.shown_tables import study_tables
        from dpprobe.reporting.report.sources import Origin, Sources
        from dpprobe.reporting.report.write import write_report
        from dpprobe.resources import resource_path
        from dpprobe.results.cell_record import STATEMENT_FILE, record_paths
        from dpprobe.study.snapshot import run_study
        from dpprobe.versions import clone_commit

        def paths(name):
            return [Path(path) for path in snakemake.input[name]]

        study, results = run_study(snakemake.config), Path(snakemake.output[0]).parent
        cells = record_paths(results, study.list_cells())
        params = snakemake.params
        # Where the papers' tables are inputs, the records that they were made from are there too.
        run = None
        if any(path.parent.name == "papers" for path in paths("tables")):
            run = Run.of_study(
                study,
                metrics=cells,
                zero_shot=[
                    results / "zero_shot" / dataset / backbone / "metrics.json"
                    for dataset in study.datasets
                    for backbone in study.text_backbones()
                ],
                few_shot=[
                    results / "few_shot" / dataset / f"{backbone}.json"
                    for dataset in study.datasets
                    for backbone in study.few_shot_backbones()
                ],
            )
        write_report(
            Path(snakemake.output[0]),
            Sources(
                summaries=paths("summaries"),
                statements=[path.with_name(STATEMENT_FILE) for path in cells],
                datasets={path.parent.name: path for path in paths("infos")},
                manifests=paths("manifests"),
                tables=study_tables(paths("tables"), paths("summaries"), run),
                figures=paths("figures"),
                audits=paths("audits"),
                records={
                    analysis.name: paths(analysis.section.files)
                    for analysis in load_analyses()
                    if analysis.section is not None
                },
                laws=paths("laws"),
                fairness=paths("fairness"),
                costly_images=paths("costly_images"),
                imbalance=paths("imbalance"),
                names=study.part_names(),
                zero_shot=[path for path in paths("zero_shot") if path.suffix == ".json"],
                captions=sorted(resource_path("captions").glob("*.rst")),
            ),
            Origin(
                study=study.model_dump(mode="json"),
                results=results,
                call=params.call,
                commit=clone_commit(),
            ),
            template=resource_path("report"),
        )
