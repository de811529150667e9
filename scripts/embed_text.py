"""Writes the text embeddings of one dataset's classes by one backbone."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.backbones.backbone import Runtime
        from dpprobe.devices import limit_threads
        from dpprobe.features.text_embeddings import write_text_embeddings

        study = run_study(snakemake.config)
        limit_threads(snakemake.threads)
        text = snakemake.params.prompts
        write_text_embeddings(
            Path(snakemake.output[0]),
            options=study.backbones[snakemake.wildcards.backbone],
            info=Path(snakemake.input.info),
            chosen=text["prompts"],
            prompt_names=text["prompt_names"],
            runtime=Runtime(device=study.device),
        )
