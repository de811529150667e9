"""Draws the attacks on real training rows of one cell."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.artifacts import read_json
        from dpprobe.reporting.figures.membership_roc import membership_roc

        def membership(path):
            return read_json(Path(path))["membership"]

        names, ceiling = snakemake.wildcards, snakemake.input.ceiling
        membership_roc(
            membership(snakemake.input.audit),
            svg=Path(snakemake.output.svg),
            png=Path(snakemake.output.png),
            title=f"{names.dataset}, {names.method} on {names.backbone}, ε = {names.epsilon}",
            beside=membership(ceiling) if ceiling else None,
        )
