"""Draws test results against an option, from methods that differ in it alone."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures.options import option_figure
        from dpprobe.results.cell_results import read_cell_results

        option_figure(
            read_cell_results(Path(path) for path in snakemake.input.metrics),
            snakemake.wildcards.option,
            dataset=snakemake.wildcards.dataset,
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
