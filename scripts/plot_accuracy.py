"""Draws accuracy against epsilon for one dataset."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.exhibits import published
        from dpprobe.reporting.figures.curves import epsilon_accuracy

        epsilon_accuracy(
            Path(snakemake.input[0]),
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
            published=published.read(),
            name=snakemake.params.name,
        )
