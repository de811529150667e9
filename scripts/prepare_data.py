"""Writes the split tables of one dataset."""

from pathlib import Path

from dpprobe import config, data
from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        data.prepare(
            config.dataset_options(snakemake.params.options),
            Path(snakemake.output.info).parent,
        )
