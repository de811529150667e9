"""Compares the subgroups of the test rows in every cell of one (dataset, backbone)."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.fairness.measure import fairness_job
        from dpprobe.study.options import FairnessOptions

        params = snakemake.params
        fairness_job(
            list(map(Path, snakemake.input.metrics)),
            FairnessOptions.model_validate(params.options),
            {(method, epsilon): (of, at) for method, epsilon, of, at in params.references},
            table=Path(snakemake.output.table),
            record=Path(snakemake.output.record),
            seed=params.seed,
            threads=snakemake.threads,
        )
