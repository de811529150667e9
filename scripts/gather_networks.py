"""Makes a cell of the networks of its seeds."""

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.training.network_cell import NetworkFiles
        from dpprobe.training.tasks import Job
        from dpprobe.training.tuned_networks import gather_networks

        study = run_study(snakemake.config)
        wildcards = snakemake.wildcards
        gather_networks(
            Job.of_rule(
                study,
                wildcards,
                snakemake.params,
                memory_mb=study.features.memory_mb,
            ),
            NetworkFiles.of_input(study, wildcards.backbone, snakemake.input),
        )
