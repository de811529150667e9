"""Draws memorised rows beside the price of privacy, over all datasets and backbones."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.long_tail.long_tail_record import read_long_tails
        from dpprobe.reporting.figures.long_tail import gap_figure
        from dpprobe.results.summary import read_grid

        gap_figure(
            read_long_tails(Path(path) for path in snakemake.input.records),
            read_grid([Path(path) for path in snakemake.input.summaries]),
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
