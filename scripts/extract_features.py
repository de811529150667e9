"""Writes one shard of features, or of the activations that enter a network's last blocks."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.study.snapshot import run_study

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.devices import limit_threads
        from dpprobe.features.extraction import extract_shard
        from dpprobe.finetune.cut_shards import extract_cut_shard

        study = run_study(snakemake.config)
        limit_threads(snakemake.threads)
        arguments = {
            "table": Path(snakemake.input.table),
            "info": Path(snakemake.input.info),
            "backbone": study.backbones[snakemake.wildcards.backbone],
            "backbone_name": snakemake.wildcards.backbone,
            "split": snakemake.wildcards.split,
            "shard": int(snakemake.wildcards.shard),
            "shards": int(snakemake.wildcards.shards),
            "output": Path(snakemake.output[0]),
            "batch_size": snakemake.params.batch_size,
            "dtype": snakemake.params.dtype,
            "threads": snakemake.threads,
            "device": study.device,
            "precision": study.features.precision,
        }
        blocks = snakemake.wildcards.get("blocks")
        if blocks is not None:
            extract_cut_shard(blocks=int(blocks), **arguments)
        else:
            extract_shard(**arguments)
