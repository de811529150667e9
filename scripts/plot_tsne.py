"""Draws one t-SNE embedding."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures.tsne import tsne_figure

        wildcards = snakemake.wildcards
        tsne_figure(
            Path(snakemake.input[0]),
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
            title=f"{wildcards.dataset} {snakemake.params.split}, {wildcards.backbone}",
        )
