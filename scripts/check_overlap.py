"""Looks for near-duplicates of one dataset's private images in public ones."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.data.table import SplitTable
        from dpprobe.devices import limit_threads
        from dpprobe.features.near_duplicates import DatasetSplit, write_near_duplicates
        from dpprobe.features.store import FeatureStore

        limit_threads(snakemake.threads)
        tables, manifests = snakemake.input.tables, snakemake.input.manifests
        private, *public = [
            DatasetSplit(
                dataset=Path(table).parent.name,
                features=FeatureStore(Path(manifest)),
                table=SplitTable(Path(table)),
            )
            for table, manifest in zip(tables, manifests, strict=True)
        ]
        write_near_duplicates(
            private,
            public,
            threshold=snakemake.params.threshold,
            device=run_study(snakemake.config).device,
            counts=Path(snakemake.output.counts),
            matches=Path(snakemake.output.matches),
        )
