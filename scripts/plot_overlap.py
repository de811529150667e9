"""Draws the private images that look most like public ones."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures.near_duplicates import near_duplicate_figure

        train, test, *public = (Path(table) for table in snakemake.input.tables)
        near_duplicate_figure(
            Path(snakemake.input.matches),
            {"train": train, "test": test},
            {f"{path.parent.name}/{path.stem}": path for path in public},
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
