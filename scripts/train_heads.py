"""Trains every method of one (dataset, backbone, epsilon)."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.devices import limit_threads
        from dpprobe.training.head_job import train_job
        from dpprobe.training.tasks import Job

        limit_threads(snakemake.threads)
        params = snakemake.params
        study = run_study(snakemake.config)
        train_job(
            Job.of_rule(
                study,
                snakemake.wildcards,
                params,
                memory_mb=params.memory_mb,
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
