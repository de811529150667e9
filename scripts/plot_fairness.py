"""Draws the gaps between a dataset's subgroups against epsilon, and against quality."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.fairness.fairness_record import FairnessRecord
        from dpprobe.reporting.figures.fairness import gap_figure, quality_figure

        records = [FairnessRecord.read(Path(path)) for path in snakemake.input.records]
        made = {name: Path(path) for name, path in snakemake.output.items()}
        gap_figure(records, svg=made["gap_svg"], png=made["gap_png"])
        quality_figure(records, svg=made["auc_svg"], png=made["auc_png"])
