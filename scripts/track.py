"""Writes the runs of one dataset to MLflow."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.code_version import clone_commit
        from dpprobe.tracking.ingest import ingest

        params, paths = snakemake.params, snakemake.input
        results = Path(snakemake.output[0]).parent.parent
        ingest(
            uri=params.uri or f"sqlite:///{results / 'mlflow.db'}",
            study=params.study,
            dataset=snakemake.wildcards.dataset,
            metrics_files=[Path(path) for path in paths.metrics],
            dataset_info=Path(paths.info),
            figures=[Path(path) for path in paths.figures],
            embeddings={
                backbone: [
                    Path(path) for path in paths.tsne if Path(path).stem == f"tsne_{backbone}"
                ]
                for backbone in params.backbones
            },
            tables=[Path(path) for path in paths.tables],
            artifact_root=results / "mlartifacts",
            receipt=Path(snakemake.output[0]),
            lock=results / "mlflow.lock",
            commit=clone_commit(),
            register=params.register,
            audits=[Path(path) for path in paths.audits],
            fairness=[Path(path) for path in paths.fairness],
        )
