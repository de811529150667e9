"""Writes the table of a dataset's subgroups."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.fairness_table import write_fairness_table

        write_fairness_table(
            [Path(path) for path in snakemake.input.records],
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
