"""Writes the tables of long tails, of all datasets and backbones."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.long_tail.long_tail_record import read_long_tails
        from dpprobe.reporting.long_tail_tables import write_long_tail_tables
        from dpprobe.results.summary import read_grid

        write_long_tail_tables(
            read_long_tails(Path(path) for path in snakemake.input.records),
            read_grid([Path(path) for path in snakemake.input.summaries]),
            Path(snakemake.output.csv[0]).parent,
        )
