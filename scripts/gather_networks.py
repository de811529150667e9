"""Makes a cell of the networks of its seeds."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.training.network_cell import NetworkFiles
        from dpprobe.training.tasks import Job
        from dpprobe.training.tuned_networks import gather_networks

        study = run_study(snakemake.config)
        given, wildcards = snakemake.input, snakemake.wildcards
        results = Path(study.results_dir)
        gather_networks(
            Job.of_rule(
                study,
                wildcards,
                snakemake.params,
                memory_mb=study.features.memory_mb,
                metric=snakemake.params.metric,
            ),
            files=NetworkFiles.of_input(study.backbones[wildcards.backbone], given),
            plans=Path(given.plans),
            cells=results / "cells",
            networks=results / "networks",
            choice=Path(given.choice) if given.choice else None,
            overlap=Path(given.overlap) if given.overlap else None,
            tables=Path(study.data_dir),
        )
