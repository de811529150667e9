"""Writes the tables of one dataset's representation laws."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.representation_law.law_record import read_laws
        from dpprobe.exhibits import published
        from dpprobe.reporting.law_tables import published_laws, write_law_tables
        from dpprobe.results.summary import read_grid

        records = read_laws(Path(path) for path in snakemake.input.records)
        write_law_tables(
            records,
            read_grid([Path(snakemake.input.summary)]),
            Path(snakemake.output.csv[0]).parent,
            dataset=snakemake.wildcards.dataset,
            published=published_laws(published.read(), snakemake.params.name, records),
        )
