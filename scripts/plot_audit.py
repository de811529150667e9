"""Draws the bounds of a dataset's audits against the claims."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.audit.audit_record import AuditRecord
        from dpprobe.reporting.figures.audit import audit_figure

        audit_figure(
            [AuditRecord.read(Path(path)) for path in snakemake.input.audits],
            dataset=snakemake.wildcards.dataset,
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
        )
