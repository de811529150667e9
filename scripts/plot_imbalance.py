"""Draws the recall of a dataset's rare classes on one backbone, and the law fitted to it."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord
        from dpprobe.reporting.figures.imbalance import imbalance_figure, law_figure

        record = ImbalanceRecord.read(Path(snakemake.input[0]))
        imbalance_figure(record, svg=Path(snakemake.output.svg), png=Path(snakemake.output.png))
        law_figure(record, svg=Path(snakemake.output.law_svg), png=Path(snakemake.output.law_png))
