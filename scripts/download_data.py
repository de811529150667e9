"""Fetches what one dataset is made of."""

from pathlib import Path

from dpprobe.data import dataset_preparation
from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        study = run_study(snakemake.config)
        dataset_preparation.download_dataset(
            study.all_datasets()[snakemake.wildcards.dataset],
            Path(snakemake.output[0]).parent,
        )
