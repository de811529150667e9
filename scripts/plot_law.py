"""Draws the representation laws of one (dataset, backbone)."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.representation_law.law_record import LawRecord
        from dpprobe.exhibits import published
        from dpprobe.reporting.figures.representation_law import law_figures
        from dpprobe.reporting.law_tables import published_laws
        from dpprobe.results.summary import read_grid

        record = LawRecord.read(Path(snakemake.input.record))
        law_figures(
            record,
            read_grid([Path(snakemake.input.summary)]),
            Path(snakemake.output.svg[0]).parent,
            published=published_laws(published.read(), snakemake.params.name, [record]),
        )
