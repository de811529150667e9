"""Runs the job of an analysis: the one that the rule is named after."""

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import original_rule, run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.analyses.measuring import find_analysis, measure_analysis

        measure_analysis(
            find_analysis(original_rule(snakemake.rule)),
            inputs={
                name: [paths] if isinstance(paths, str) else list(paths)
                for name, paths in snakemake.input.items()
            },
            outputs=list(snakemake.output),
            params=dict(snakemake.params.items()),
            wildcards=dict(snakemake.wildcards.items()),
            threads=snakemake.threads,
            read_study=lambda: run_study(snakemake.config),
        )
