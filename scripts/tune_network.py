"""Trains the network of one seed of a (dataset, backbone, method, epsilon)."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.devices import limit_threads
        from dpprobe.training.network_cell import NetworkFiles, keep_network
        from dpprobe.training.tasks import Job

        limit_threads(snakemake.threads)
        study = run_study(snakemake.config)
        given, wildcards = snakemake.input, snakemake.wildcards
        results = Path(study.results_dir)
        job = Job.of_rule(
            study,
            wildcards,
            snakemake.params,
            memory_mb=study.features.memory_mb,
            metric=snakemake.params.metric,
        )
        arguments = {
            "index": int(wildcards.index),
            "files": NetworkFiles.of_input(study.backbones[wildcards.backbone], given),
            "plans": Path(given.plans),
            "cells": results / "cells",
            "networks": results / "networks",
            "choice": Path(given.choice) if given.choice else None,
            "tables": Path(study.data_dir),
        }
        if not keep_network(job, **arguments, device=study.device):
            # imports the libraries of networks, which takes seconds
            from dpprobe.training.network_job import Limits, tune_network

            limits = Limits.of_study(study, threads=snakemake.threads)
            tune_network(job, **arguments, limits=limits)
