"""Proves that the shards of a split belong together, and writes their manifest."""

from pathlib import Path

from dpprobe.data.table import SplitTable, read_info
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        info = read_info(Path(snakemake.input.info))
        train, copies = snakemake.wildcards.split == "train", None
        if train:
            # tables of an earlier dpprobe have no counts, and need not be made again for them
            copies = info.copies or SplitTable(Path(snakemake.input.table)).count_copies()
        write_manifest(
            [Path(path) for path in snakemake.input.shards],
            Path(snakemake.output[0]),
            rows=info.train_rows if train else info.test_rows,
            dataset_fingerprint=info.fingerprint,
            copies=copies,
        )
