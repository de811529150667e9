"""Draws one of the figures that a dataset's summary is enough for."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.figures import curves

        draw = {
            "method_comparison": curves.method_comparison,
            "ceiling_gap": curves.ceiling_gap,
        }[snakemake.params.figure]
        draw(
            Path(snakemake.input[0]),
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
