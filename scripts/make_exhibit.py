"""Makes a table or a figure: the exhibit that the rule is named after."""

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import original_rule, run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.exhibits.make import make_exhibit
        from dpprobe.reporting.registry import find_exhibit

        def list_paths(named):
            return {
                name: [paths] if isinstance(paths, str) else list(paths)
                for name, paths in named.items()
            }

        make_exhibit(
            find_exhibit(original_rule(snakemake.rule)),
            inputs=list_paths(snakemake.input),
            outputs=list_paths(snakemake.output),
            params=dict(snakemake.params.items()),
            wildcards=dict(snakemake.wildcards.items()),
            read_study=lambda: run_study(snakemake.config),
        )
