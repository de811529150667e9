"""Draws a figure that compares a dataset's backbones, its labels, or sizes of its images."""

from pathlib import Path

from dpprobe.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.exhibits import published
        from dpprobe.features.shard_manifest import read_manifest
        from dpprobe.reporting.figures import backbones, datasets
        from dpprobe.results.cell_record import record_paths
        from dpprobe.results.cell_results import read_cell_results

        params, dataset = snakemake.params, snakemake.wildcards.dataset
        files = {"svg": Path(snakemake.output.svg), "png": Path(snakemake.output.png)}
        # <results>/figures/<dataset>/<name>.svg
        results, study = files["svg"].parents[2], run_study(snakemake.config)
        cells = read_cell_results(record_paths(results, study.cells(dataset)))
        if snakemake.wildcards.figure == "by_backbone":
            backbones.backbone_figure(
                cells, dataset=dataset, published=published.read(), name=params.name, **files
            )
        elif snakemake.wildcards.figure == "by_resolution":
            manifests = [Path(path) for path in snakemake.input.manifests]
            backbones.resolution_figure(
                cells,
                backbones=params.backbones,
                sizes={
                    path.parent.parent.name: backbones.image_side(read_manifest(path))
                    for path in manifests
                },
                dataset=dataset,
                base=params.base,
                **files,
            )
        else:
            datasets.real_labels_figure(cells, dataset=dataset, **files)
