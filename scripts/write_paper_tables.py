"""Writes the papers' tables, published numbers beside measured ones."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.exhibits import published
        from dpprobe.reporting.paper_tables.common import Run
        from dpprobe.reporting.paper_tables.write import write_paper_tables
        from dpprobe.study.snapshot import run_study

        def paths(name):
            return [Path(path) for path in snakemake.input[name]]

        run = Run.of_study(
            run_study(snakemake.config),
            metrics=paths("metrics"),
            zero_shot=paths("zero_shot"),
            few_shot=paths("few_shot"),
        )
        write_paper_tables(run, published.read(), Path(snakemake.output.references).parent)
