"""Looks for near-duplicates of one dataset's images, of both splits, in public ones."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.data.table import SPLITS, SplitTable
        from dpprobe.devices import limit_threads
        from dpprobe.features.feature_store import FeatureStore
        from dpprobe.features.near_duplicate_search import DatasetSplit
        from dpprobe.features.overlap_record import write_near_duplicates

        limit_threads(snakemake.threads)
        tables, manifests = snakemake.input.tables, snakemake.input.manifests
        splits = [
            DatasetSplit(
                dataset=Path(table).parent.name,
                features=FeatureStore(Path(manifest)),
                table=SplitTable(Path(table)),
            )
            for table, manifest in zip(tables, manifests, strict=True)
        ]
        write_near_duplicates(
            splits[: len(SPLITS)],
            splits[len(SPLITS) :],
            threshold=snakemake.params.threshold,
            device=run_study(snakemake.config).device,
            counts=Path(snakemake.output.counts),
            matches=Path(snakemake.output.matches),
        )
