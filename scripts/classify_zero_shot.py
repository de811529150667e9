"""Classifies a test split by the text embeddings of its classes."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.zero_shot.measure import zero_shot

        zero_shot(
            Path(snakemake.input.test),
            Path(snakemake.input.text),
            output=Path(snakemake.output.metrics),
            predictions=Path(snakemake.output.predictions),
            dataset=snakemake.wildcards.dataset,
            backbone=snakemake.wildcards.backbone,
            metric=snakemake.params.metric,
            seed=snakemake.params.seed,
        )
