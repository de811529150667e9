"""Registers one release in MLflow."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.tracking.release_registry import register_release

        params = snakemake.params
        results = Path(snakemake.output[0]).parents[2]
        register_release(
            Path(snakemake.input.bundle[0]).parent,
            uri=params.uri or f"sqlite:///{results / 'mlflow.db'}",
            study=params.study,
            artifact_root=results / "mlartifacts",
            receipt=Path(snakemake.output[0]),
            lock=results / "mlflow.lock",
        )
