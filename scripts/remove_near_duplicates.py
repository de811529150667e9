"""Writes the split tables of one dataset without near-duplicates of public images."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.features.near_duplicate_removal import remove_near_duplicates

        remove_near_duplicates(
            Path(snakemake.input.info[0]).parent,
            Path(snakemake.output.info).parent,
            run_study(snakemake.config).datasets[snakemake.wildcards.dataset],
            counts=Path(snakemake.input.counts[0]),
            matches=Path(snakemake.input.matches[0]),
        )
