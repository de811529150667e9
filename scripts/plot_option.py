"""Draws test results against an option, from methods that differ in it alone."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures.options import option_figure
        from dpprobe.results.cell_record import record_paths
        from dpprobe.results.cell_results import read_cell_results

        dataset, svg = snakemake.wildcards.dataset, Path(snakemake.output.svg)
        # <results>/figures/<dataset>/<name>.svg
        results, study = svg.parents[2], run_study(snakemake.config)
        option_figure(
            read_cell_results(record_paths(results, study.cells(dataset))),
            snakemake.wildcards.option,
            dataset=dataset,
            svg=svg,
            png=Path(snakemake.output.png),
        )
