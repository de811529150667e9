"""Trains every method of one (dataset, backbone, epsilon)."""

from pathlib import Path

from dpprobe.heads.registry import method_options
from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.devices import limit_threads
        from dpprobe.training.job import Job, train_job

        limit_threads(snakemake.threads)
        params = snakemake.params
        study = run_study(snakemake.config)
        train_job(
            Job(
                study=study.study,
                private_datasets=tuple(study.datasets),
                dataset=snakemake.wildcards.dataset,
                backbone=snakemake.wildcards.backbone,
                epsilon=snakemake.wildcards.epsilon,
                methods={name: method_options(options) for name, options in params.methods.items()},
                seeds=params.seeds,
                study_seed=params.seed,
                memory_mb=params.memory_mb,
                metric=params.metric,
                **params.privacy,
            ),
            train=Path(snakemake.input.train),
            test=Path(snakemake.input.test),
            plans=Path(snakemake.input.plans),
            # <cells>/<dataset>/<backbone>/<method>/eps-<epsilon>/<file>
            cells=Path(snakemake.output.cells[0]).parents[4],
            device=study.device,
            overlap=Path(snakemake.input.overlap) if snakemake.input.overlap else None,
            tables=Path(study.data_dir),
        )
