"""Draws a figure of all datasets of a study."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures import datasets
        from dpprobe.results.cell_results import read_cell_results

        cells = read_cell_results(Path(path) for path in snakemake.input.metrics)
        files = {"svg": Path(snakemake.output.svg), "png": Path(snakemake.output.png)}
        if snakemake.wildcards.figure == "deltas":
            datasets.delta_figure(snakemake.params.groups, cells, **files)
        elif snakemake.wildcards.figure == "dataset_size":
            datasets.size_figure(cells, **files)
        else:
            datasets.datasets_figure(cells, **files)
