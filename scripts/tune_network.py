"""Trains the network of one seed of a (dataset, backbone, method, epsilon)."""

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.devices import limit_threads
        from dpprobe.training.network_cell import NetworkFiles, keep_network, open_network_job
        from dpprobe.training.tasks import Request

        study = run_study(snakemake.config)
        request = Request.of_rule(study, snakemake.wildcards, snakemake.params)
        files = NetworkFiles.of_rule(study, request.backbone, snakemake.input)
        index, opened = int(snakemake.wildcards.index), open_network_job(request, files)
        if not keep_network(opened, files, index=index, device=study.device):
            # imports the libraries of networks, which takes seconds
            from dpprobe.training.network_job import Limits, tune_network

            limit_threads(snakemake.threads)
            limits = Limits.of_study(study, threads=snakemake.threads)
            tune_network(request, files, index=index, limits=limits)
