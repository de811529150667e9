"""Registers one release in MLflow."""

from pathlib import Path

from dpprobe.files.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.tracking.release_registry import register_release
        from dpprobe.tracking.writer import Destination

        params = snakemake.params
        results = Path(snakemake.output[0]).parents[2]
        register_release(
            results / "releases" / snakemake.wildcards.release,
            Destination.of_results(
                results, uri=params.uri, study=params.study, receipt=Path(snakemake.output[0])
            ),
        )
