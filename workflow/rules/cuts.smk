# Activations of the frozen blocks, computed once as feature shards and read for every epsilon, seed and trial. A
# subsample's activations are computed from the subsample's table.
rule extract_cut:
    """Activations before a network's last blocks, one shard."""
    input:
        table="<data>/{dataset}/{split}.parquet",
        info="<data>/{dataset}/dataset.json",
        weights=backbone_files,
    output:
        "<results>/cuts/{dataset}/{backbone}/blocks-{blocks}/{split}/shard-{shard}-of-{shards}.h5",
    log:
        "<logs>/extract_cut/{dataset}/{backbone}/blocks-{blocks}/{split}/shard-{shard}-of-{shards}.log",
    benchmark:
        "<benchmarks>/extract_cut/{dataset}/{backbone}/blocks-{blocks}/{split}/shard-{shard}-of-{shards}.tsv"
    wildcard_constraints:
        blocks=r"\d+",
        shard=r"\d{5}",
        shards=r"\d{5}",
    conda:
        "../../envs/extraction.yaml"
    threads: network_threads
    resources:
        mem_mb=extraction_memory,
        runtime=extraction_minutes,
        gpu=network_gpus,
    params:
        backbone=lambda wildcards: STUDY.backbones[
            wildcards.backbone
        ].extraction_params(),
        batch_size=STUDY.features.batch_size,
        dtype=STUDY.features.dtype,
        precision=STUDY.features.precision,
        features=VERSIONS["features"],
        version=VERSIONS["cuts"],
        files=outside_state(backbone_files),
    message:
        "activations of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}, before its last "
        "{wildcards.blocks} blocks, shard {wildcards.shard} of {wildcards.shards}"
    script:
        "../../scripts/extract_features.py"


rule write_cut_manifest:
    """Manifest of activations, which proves that shards are complete."""
    input:
        shards=lambda wildcards: [
            f"<results>/cuts/{wildcards.dataset}/{wildcards.backbone}/blocks-{wildcards.blocks}/"
            f"{wildcards.split}/{name}"
            for name in FILES.list_shard_names()
        ],
        info="<data>/{dataset}/dataset.json",
    output:
        "<results>/cuts/{dataset}/{backbone}/blocks-{blocks}/{split}/manifest.json",
    log:
        "<logs>/write_cut_manifest/{dataset}/{backbone}/blocks-{blocks}/{split}.log",
    benchmark:
        "<benchmarks>/write_cut_manifest/{dataset}/{backbone}/blocks-{blocks}/{split}.tsv"
    wildcard_constraints:
        blocks=r"\d+",
    conda:
        "../../envs/extraction.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10, per_gb=5),
    params:
        promise=lambda wildcards: promise_facts(DATASETS[wildcards.dataset]).to_dict(),
        version=VERSIONS["cuts"],
    message:
        "manifest of activations of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}, before its last "
        "{wildcards.blocks} blocks"
    script:
        "../../scripts/write_manifest.py"


rule cuts:
    """Activations that fine-tuning starts from."""
    input:
        later(FILES.list_cuts),
