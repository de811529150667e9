"""Searches options of one (dataset, backbone, method, epsilon), by trials without a price."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.devices import limit_threads
        from dpprobe.training.network_cell import NetworkFiles, open_network_job
        from dpprobe.training.network_job import Limits
        from dpprobe.training.search_job import search_job
        from dpprobe.training.tasks import Request

        limit_threads(snakemake.threads)
        study = run_study(snakemake.config)
        request = Request.of_rule(study, snakemake.wildcards, snakemake.params)
        files = NetworkFiles.of_rule(study, request.backbone, snakemake.input)
        search_job(
            open_network_job(request, files),
            files,
            output=Path(snakemake.output[0]),
            limits=Limits.of_study(study, threads=snakemake.threads),
        )
