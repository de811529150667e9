"""Measures sub-classes and memorisation of the features of one (dataset, backbone)."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.long_tail.measure import long_tail_job
        from dpprobe.study.options import LongTailOptions

        long_tail_job(
            Path(snakemake.input.train),
            Path(snakemake.input.test),
            # <long_tail>/<dataset>/<backbone>.json
            Path(snakemake.output.record).parents[1],
            dataset=snakemake.wildcards.dataset,
            backbone=snakemake.wildcards.backbone,
            options=LongTailOptions.model_validate(snakemake.params.options),
            seed=snakemake.params.seed,
            threads=snakemake.threads,
        )
