"""Draws sub-classes and memorisation of one dataset."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.long_tail.long_tail_record import read_long_tails
        from dpprobe.reporting.figures.long_tail import long_tail_figure

        long_tail_figure(
            read_long_tails(Path(path) for path in snakemake.input),
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
