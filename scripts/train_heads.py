"""Trains every method of one (dataset, backbone, epsilon)."""

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.training.head_job import train_job
        from dpprobe.training.tasks import JobFiles, Request, open_job

        params = snakemake.params
        study = run_study(snakemake.config)
        opened = open_job(
            Request.of_rule(study, snakemake.wildcards, params),
            JobFiles.of_input(study, snakemake.input),
        )
        train_job(
            opened,
            device=study.device,
            memory_mb=params.memory_mb,
            threads=snakemake.threads,
        )
