"""Searches options of one (dataset, backbone, method, epsilon), by trials without a price."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.devices import limit_threads
        from dpprobe.training.network_cell import NetworkFiles
        from dpprobe.training.network_job import Limits
        from dpprobe.training.search_job import search_job
        from dpprobe.training.tasks import Job

        limit_threads(snakemake.threads)
        study = run_study(snakemake.config)
        wildcards = snakemake.wildcards
        search_job(
            Job.of_rule(
                study,
                wildcards,
                snakemake.params,
                memory_mb=study.features.memory_mb,
            ),
            NetworkFiles.of_input(study, wildcards.backbone, snakemake.input),
            output=Path(snakemake.output[0]),
            limits=Limits.of_study(study, threads=snakemake.threads),
        )
