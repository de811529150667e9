"""Compares what all cells of a dataset and its copies make of the rare classes."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.analyses.imbalance.measure import compare_rare_classes
        from dpprobe.results.cell_record import CellName

        study = run_study(snakemake.config)
        infos = {Path(path).parent.name: Path(path) for path in snakemake.input.infos}
        compare_rare_classes(
            [
                CellName(**cell._asdict())
                for cell in study.list_cells(*infos)
                if cell.backbone == snakemake.wildcards.backbone
            ],
            # <cells>/<dataset>/<backbone>/<method>/eps-<epsilon>/<file>
            cells=Path(snakemake.input.cells[0]).parents[4],
            infos=infos,
            dataset=snakemake.wildcards.dataset,
            backbone=snakemake.wildcards.backbone,
            classes=study.imbalance.classes,
            # <folder>/<dataset>/<backbone>.json
            folder=Path(snakemake.output.record).parents[1],
        )
