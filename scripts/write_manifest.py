"""Proves that the shards of a split belong together, and writes their manifest."""

from dataclasses import replace
from pathlib import Path

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.data.table import read_info
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        info = read_info(Path(snakemake.input.info))
        train = snakemake.wildcards.split == "train"
        write_manifest(
            [Path(path) for path in snakemake.input.shards],
            Path(snakemake.output[0]),
            rows=info.train_rows if train else info.test_rows,
            dataset_fingerprint=info.fingerprint,
            copies=info.train_copies if train else info.test_copies,
            promise=replace(
                PromiseFacts.from_dict(snakemake.params.promise),
                copies_across=info.duplicates_across_splits,
            ),
        )
