"""Writes the interactive page of one t-SNE embedding."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.tsne_page import write_tsne_page
        from dpprobe.resources import resource

        wildcards, params, paths = snakemake.wildcards, snakemake.params, snakemake.input
        write_tsne_page(
            Path(paths.embedding),
            Path(snakemake.output[0]),
            template=resource("tsne"),
            title=f"{wildcards.dataset} {params.split}, {wildcards.backbone}",
            images=Path(paths.images[0]) if params.thumbnails else None,
        )
