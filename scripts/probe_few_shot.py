"""Trains linear probes on a few images a class."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.few_shot.measure import Task, few_shot
        from dpprobe.devices import limit_threads

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
            device=run_study(snakemake.config).device,
        )
