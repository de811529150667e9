"""Writes the runs of one dataset to MLflow."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.code_version import clone_commit
        from dpprobe.results.cell_record import record_paths
        from dpprobe.tracking.ingest import update_dataset
        from dpprobe.tracking.writer import Destination

        params, paths = snakemake.params, snakemake.input
        results = Path(snakemake.output[0]).parent.parent
        dataset = snakemake.wildcards.dataset
        cells = run_study(snakemake.config).list_cells(dataset)
        update_dataset(
            Destination.of_results(
                results,
                uri=params.uri,
                study=params.study,
                receipt=Path(snakemake.output[0]),
                commit=clone_commit(),
            ),
            dataset=dataset,
            metrics_files=record_paths(results, cells),
            dataset_info=Path(paths.info),
            figures=[Path(path) for path in paths.figures],
            planes={Path(path).stem.removeprefix("tsne_"): Path(path) for path in paths.tsne},
            tables=[Path(path) for path in paths.tables],
            audits=[Path(path) for path in paths.audits],
            fairness=[Path(path) for path in paths.fairness],
            zero_shot=[Path(path) for path in paths.zero_shot],
            few_shot=[Path(path) for path in paths.few_shot],
        )
