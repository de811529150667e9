"""Proves that the shards of a split belong together, and writes their manifest."""

from pathlib import Path

from dpprobe.data.table import read_info
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        info = read_info(Path(snakemake.input.info))
        train = snakemake.wildcards.split == "train"
        write_manifest(
            [Path(path) for path in snakemake.input.shards],
            Path(snakemake.output[0]),
            rows=info.train_rows if train else info.test_rows,
            dataset_fingerprint=info.fingerprint,
            copies=info.train_copies if train else None,
        )
