"""Writes the report of a study."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.artifacts import git_commit
        from dpprobe.reporting.report import Origin, Sources, write_report
        from dpprobe.study.load import load_study

        def paths(name):
            return [Path(path) for path in snakemake.input[name]]

        params, resources = snakemake.params, Path(snakemake.scriptdir).parent / "resources"
        write_report(
            Path(snakemake.output[0]),
            Sources(
                summaries=paths("summaries"),
                statements=paths("statements"),
                datasets={path.parent.name: path for path in paths("infos")},
                manifests=paths("manifests"),
                tables=paths("tables"),
                figures=paths("figures"),
                zero_shot=[path for path in paths("zero_shot") if path.suffix == ".json"],
                captions=sorted((resources / "captions").glob("*.rst")),
            ),
            Origin(
                study=load_study(snakemake.config).model_dump(mode="json"),
                results=Path(snakemake.output[0]).parent,
                call=params.call,
                commit=git_commit(resources.parent),
            ),
            template=resources / "report",
        )
