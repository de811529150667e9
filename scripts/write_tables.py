"""Writes the table of accuracies of a study."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.accuracy_table import write_accuracy_table

        write_accuracy_table(
            [Path(path) for path in snakemake.input],
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
