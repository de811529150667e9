"""Trains the network of one seed of a (dataset, backbone, method, epsilon)."""

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.devices import limit_threads
        from dpprobe.training.network_cell import NetworkFiles, keep_network
        from dpprobe.training.tasks import Job

        limit_threads(snakemake.threads)
        study = run_study(snakemake.config)
        wildcards = snakemake.wildcards
        job = Job.of_rule(
            study,
            wildcards,
            snakemake.params,
            memory_mb=study.features.memory_mb,
        )
        files = NetworkFiles.of_input(study, wildcards.backbone, snakemake.input)
        index = int(wildcards.index)
        if not keep_network(job, files, index=index, device=study.device):
            # imports the libraries of networks, which takes seconds
            from dpprobe.training.network_job import Limits, tune_network

            limits = Limits.of_study(study, threads=snakemake.threads)
            tune_network(job, files, index=index, limits=limits)
