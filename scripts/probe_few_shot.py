"""Trains linear probes on a few images a class."""

from pathlib import Path

from dpprobe import config
from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.devices import limit_threads
        from dpprobe.few_shot import Task, few_shot

        limit_threads(snakemake.threads)
        options = snakemake.params.options
        few_shot(
            Path(snakemake.input.train),
            Path(snakemake.input.test),
            task=Task(
                dataset=snakemake.wildcards.dataset,
                backbone=snakemake.wildcards.backbone,
                shots=options["shots"],
                seeds=options["seeds"],
                study_seed=snakemake.params.seed,
                memory_mb=snakemake.params.memory_mb,
                metric=snakemake.params.metric,
            ),
            rows=Path(snakemake.output.rows),
            output=Path(snakemake.output.record),
            device=config.load(snakemake.config).device,
        )
