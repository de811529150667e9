"""Writes the test images of one dataset that privacy costs most."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.reporting.costly_images import write_costly_images

        write_costly_images(
            [Path(path) for path in snakemake.input.metrics],
            Path(snakemake.input.images),
            Path(snakemake.output[0]),
            count=snakemake.params.shown,
        )
