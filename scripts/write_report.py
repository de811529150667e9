"""Writes the report of a study."""

from pathlib import Path

from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.reporting.report.write import write_study_report
        from dpprobe.study.snapshot import run_study

        write_study_report(
            Path(snakemake.output[0]),
            run_study(snakemake.config),
            {name: list(map(Path, files)) for name, files in snakemake.input.items()},
            call=snakemake.params.call,
        )
