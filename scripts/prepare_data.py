"""Writes the split tables of one dataset."""

from pathlib import Path

from dpprobe.data import dataset_preparation
from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        study = run_study(snakemake.config)
        receipt, whole = snakemake.input.receipt, snakemake.input.whole
        dataset_preparation.prepare_dataset(
            study.all_datasets()[snakemake.wildcards.dataset],
            Path(snakemake.output.info).parent,
            downloaded=Path(receipt).parent if receipt else None,
            whole=Path(whole[0]).parent if whole else None,
        )
