"""Writes the manifest of a joined backbone, whose features are read from its members' shards."""

from pathlib import Path

from dpprobe.backbones.joined import Options
from dpprobe.features.joined_manifest import write_joined_manifest
from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        write_joined_manifest(
            [Path(path) for path in snakemake.input.members],
            Path(snakemake.output[0]),
            backbone=snakemake.wildcards.backbone,
            options=Options(**snakemake.params.backbone, dimension=snakemake.params.dimension),
        )
