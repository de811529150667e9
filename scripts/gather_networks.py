"""Makes a cell of the networks of its seeds."""

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.training.network_cell import NetworkFiles, open_network_job
        from dpprobe.training.tasks import Request
        from dpprobe.training.tuned_networks import gather_networks

        study = run_study(snakemake.config)
        request = Request.of_rule(study, snakemake.wildcards, snakemake.params)
        files = NetworkFiles.of_rule(study, request.backbone, snakemake.input)
        gather_networks(open_network_job(request, files), files)
