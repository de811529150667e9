"""Looks for near-duplicates of one dataset's private images in public ones."""

from pathlib import Path

from dpprobe import config
from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.data.table import SplitTable
        from dpprobe.devices import limit_threads
        from dpprobe.features.store import FeatureStore
        from dpprobe.overlap import Rows, write_overlap

        limit_threads(snakemake.threads)
        tables, manifests = snakemake.input.tables, snakemake.input.manifests
        private, *public = [
            Rows(
                dataset=Path(table).parent.name,
                features=FeatureStore(Path(manifest)),
                table=SplitTable(Path(table)),
            )
            for table, manifest in zip(tables, manifests, strict=True)
        ]
        write_overlap(
            private,
            public,
            threshold=snakemake.params.threshold,
            device=config.load(snakemake.config).device,
            counts=Path(snakemake.output.counts),
            matches=Path(snakemake.output.matches),
        )
