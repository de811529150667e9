"""Writes the papers' tables, published numbers beside measured ones."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.baselines.few_shot import read_few_shot
        from dpprobe.baselines.zero_shot import read_zero_shot
        from dpprobe.reporting import published
        from dpprobe.reporting.paper_tables.common import Run
        from dpprobe.reporting.paper_tables.write import write_paper_tables
        from dpprobe.results.cell_results import read_measured

        params = snakemake.params
        write_paper_tables(
            Run(
                study=params.study,
                cells=read_measured(Path(path) for path in snakemake.input.metrics),
                names=params.names,
                backbones=params.backbones,
                methods=params.papers["methods"],
                base=params.papers["base"],
                zero_shot=[read_zero_shot(Path(path)) for path in snakemake.input.zero_shot],
                few_shot=[read_few_shot(Path(path)) for path in snakemake.input.few_shot],
            ),
            published.read(),
            Path(snakemake.output.references).parent,
        )
