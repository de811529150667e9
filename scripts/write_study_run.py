"""Writes the run of a whole study to MLflow."""

from pathlib import Path

from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.code_version import clone_commit
        from dpprobe.tracking.ingest import ingest_study
        from dpprobe.tracking.writer import Destination

        params, paths = snakemake.params, snakemake.input
        results = Path(snakemake.output[0]).parent.parent
        ingest_study(
            Destination.of_results(
                results,
                uri=params.uri,
                study=params.study,
                receipt=Path(snakemake.output[0]),
                commit=clone_commit(),
            ),
            report=Path(paths.report),
            summaries=[Path(path) for path in paths.summaries],
            dataset_infos={Path(path).parent.name: Path(path) for path in paths.infos},
            figures=[],
            tables=[
                path
                for path in map(Path, paths.tables)
                if "tables" in path.relative_to(results).parts
            ],
        )
