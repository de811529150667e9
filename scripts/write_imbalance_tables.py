"""Writes the tables of a dataset's rare classes."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.imbalance_table import write_imbalance_tables

        write_imbalance_tables(
            [Path(path) for path in snakemake.input],
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
