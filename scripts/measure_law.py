"""Measures the laws of the frozen network and the tuned ones of one (dataset, backbone)."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.analyses.representation_law.law_networks import LawTask
        from dpprobe.analyses.representation_law.options import RepresentationLawOptions

        study = run_study(snakemake.config)
        params, wildcards = snakemake.params, snakemake.wildcards
        place = {"dataset": wildcards.dataset, "backbone": wildcards.backbone}
        task = LawTask(
            networks=params.networks,
            results=Path(study.results_dir),
            tables={split: Path(snakemake.input[split]) for split in ("train", "test")},
            dataset=wildcards.dataset,
            backbone_name=wildcards.backbone,
            backbone=study.backbones[wildcards.backbone],
            methods={name: study.methods[name].fill_paths(**place) for name in params.methods},
            options=RepresentationLawOptions.model_validate(params.options),
            seed=params.seed,
            device=study.device,
        )
        task.measure_law(threads=snakemake.threads)
