"""Audits the promises of the methods of one (dataset, backbone, epsilon)."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.analyses.audit.audit_record import AUDITS
        from dpprobe.analyses.audit.measure import audit_cells
        from dpprobe.analyses.audit.options import AuditOptions
        from dpprobe.devices import limit_threads
        from dpprobe.training.tasks import Request

        limit_threads(snakemake.threads)
        params = snakemake.params
        study = run_study(snakemake.config)
        audit_cells(
            Request.of_rule(study, snakemake.wildcards, params),
            AuditOptions.model_validate(params.options),
            train=Path(snakemake.input.train),
            plans=Path(snakemake.input.plans),
            audits=Path(study.results_dir, AUDITS),
            private_datasets=list(study.datasets),
            device=study.device,
            memory_mb=study.features.memory_mb,
        )
