"""Gathers the cells of one dataset in one tidy table."""

from pathlib import Path

from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.results.summary import summarise_cells

        summarise_cells(
            [Path(path) for path in snakemake.input.metrics],
            Path(snakemake.output[0]),
            study=snakemake.params.study,
            metric_of=snakemake.params.metric_of,
        )
