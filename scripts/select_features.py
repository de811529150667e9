"""Writes one shard of the features of a part of a dataset's rows."""

from pathlib import Path

from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.features.subsample_features import select_shard

        select_shard(
            manifest=Path(snakemake.input.manifest),
            whole=Path(snakemake.input.whole),
            table=Path(snakemake.input.table),
            split=snakemake.wildcards.split,
            shard=int(snakemake.wildcards.shard),
            shards=int(snakemake.wildcards.shards),
            output=Path(snakemake.output[0]),
        )
