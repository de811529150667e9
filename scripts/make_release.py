"""Makes one release, or keeps the one that is made."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.devices import limit_threads
        from dpprobe.release.make import ReleaseTask

        limit_threads(snakemake.threads)
        task = ReleaseTask(
            study=run_study(snakemake.config),
            name=snakemake.wildcards.release,
            train=Path(snakemake.input.train),
            test=Path(snakemake.input.test),
            # the mark is .<release>.done, beside the folder of the bundle
            output=Path(snakemake.output[0]).with_name(snakemake.wildcards.release),
            cache=Path(snakemake.params.calibration),
            audit=Path(snakemake.input.audit) if snakemake.input.audit else None,
            benchmark=Path(snakemake.input.benchmark[0]) if snakemake.input.benchmark else None,
        )
        task.run(wait_minutes=None)
