"""Draws all embeddings of a study side by side."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures.tsne import tsne_grid

        paths = [Path(path) for path in snakemake.input]
        tsne_grid(
            {(path.parent.parent.name, path.parent.name): path for path in paths},
            split=snakemake.params.split,
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
