from dpprobe.data.promise_facts import promise_facts
from dpprobe.stage_versions import VERSIONS

# Joined backbones are omitted, because their features are read from other backbones' shards.
EXTRACTED = [name for name in STUDY.backbones if not FILES.list_members(name)]


rule extract_features:
    """Features of a frozen backbone, one shard."""
    input:
        table="<data>/{dataset}/{split}.parquet",
        info="<data>/{dataset}/dataset.json",
        weights=backbone_files,
    output:
        "<results>/features/{dataset}/{backbone}/{split}/shard-{shard}-of-{shards}.h5",
    log:
        "<logs>/extract_features/{dataset}/{backbone}/{split}/shard-{shard}-of-{shards}.log",
    benchmark:
        "<benchmarks>/extract_features/{dataset}/{backbone}/{split}/shard-{shard}-of-{shards}.tsv"
    wildcard_constraints:
        dataset=names([name for name in DATASETS if name not in WHOLE]),
        backbone=names(EXTRACTED),
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
        backbone=backbone_params,
        batch_size=STUDY.features.batch_size,
        dtype=STUDY.features.dtype,
        precision=STUDY.features.precision,
        version=VERSIONS["features"],
        files=outside_state(backbone_files),
    message:
        "features of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}, "
        "shard {wildcards.shard} of {wildcards.shards}"
    script:
        "../../scripts/extract_features.py"


# A subsample's features are copied from the whole dataset's shards, so that a network processes every image only once.
rule select_features:
    """Features of a part of a dataset, one shard."""
    input:
        table="<data>/{dataset}/{split}.parquet",
        info="<data>/{dataset}/dataset.json",
        whole=lambda wildcards: f"<data>/{whole_name(wildcards)}/{wildcards.split}.parquet",
        manifest=lambda wildcards: FILES.locate_manifest(
            whole_name(wildcards), wildcards.backbone, wildcards.split
        ),
        shards=lambda wildcards: FILES.list_shards(
            whole_name(wildcards), wildcards.backbone, wildcards.split
        ),
    output:
        "<results>/features/{dataset}/{backbone}/{split}/shard-{shard}-of-{shards}.h5",
    log:
        "<logs>/select_features/{dataset}/{backbone}/{split}/shard-{shard}-of-{shards}.log",
    benchmark:
        "<benchmarks>/select_features/{dataset}/{backbone}/{split}/shard-{shard}-of-{shards}.tsv"
    wildcard_constraints:
        dataset=names(WHOLE),
        backbone=names(EXTRACTED),
        shard=r"\d{5}",
        shards=r"\d{5}",
    conda:
        "../../envs/extraction.yaml"
    threads: 1
    resources:
        # a shard's rows are float32 in memory
        mem_mb=memory(1500, factor=2.2),
        runtime=minutes(10, per_gb=5),
    params:
        version=VERSIONS["features"],
    message:
        "features of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}, "
        "shard {wildcards.shard} of {wildcards.shards}, from the whole dataset's"
    script:
        "../../scripts/select_features.py"


rule write_manifest:
    """Manifest of features, which proves that shards are complete."""
    input:
        shards=lambda wildcards: FILES.list_shards(
            wildcards.dataset, wildcards.backbone, wildcards.split
        ),
        info="<data>/{dataset}/dataset.json",
        table="<data>/{dataset}/{split}.parquet",
    output:
        "<results>/features/{dataset}/{backbone}/{split}/manifest.json",
    log:
        "<logs>/write_manifest/{dataset}/{backbone}/{split}.log",
    benchmark:
        "<benchmarks>/write_manifest/{dataset}/{backbone}/{split}.tsv"
    wildcard_constraints:
        backbone=names(EXTRACTED),
    conda:
        "../../envs/extraction.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10, per_gb=5),
    params:
        promise=lambda wildcards: promise_facts(DATASETS[wildcards.dataset]).to_dict(),
        version=VERSIONS["manifest"],
    message:
        "manifest of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}"
    script:
        "../../scripts/write_manifest.py"


# A joined backbone has no shards: its manifest names the members' manifests, and readers join the rows.
rule join_features:
    """Manifest of a joined backbone's features, which are read from its members' shards."""
    input:
        members=lambda wildcards: [
            FILES.locate_manifest(wildcards.dataset, member, wildcards.split)
            for member in FILES.list_members(wildcards.backbone)
        ],
    output:
        "<results>/features/{dataset}/{backbone}/{split}/manifest.json",
    log:
        "<logs>/join_features/{dataset}/{backbone}/{split}.log",
    benchmark:
        "<benchmarks>/join_features/{dataset}/{backbone}/{split}.tsv"
    wildcard_constraints:
        backbone=names([name for name in STUDY.backbones if name not in EXTRACTED]),
    conda:
        "../../envs/extraction.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        backbone=backbone_params,
        dimension=lambda wildcards: STUDY.backbones[wildcards.backbone].dimension,
        version=VERSIONS["manifest"],
    message:
        "joined features of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}"
    script:
        "../../scripts/join_features.py"


# A text encoder's embeddings of the class names are public, and the weights of a zero-shot classifier.
rule embed_text:
    """A text encoder's embeddings of the class names."""
    input:
        info="<data>/{dataset}/dataset.json",
        weights=backbone_files,
    output:
        "<results>/features/{dataset}/{backbone}/text.safetensors",
    log:
        "<logs>/embed_text/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/embed_text/{dataset}/{backbone}.tsv"
    wildcard_constraints:
        backbone=names(STUDY.text_backbones()),
    conda:
        "../../envs/extraction.yaml"
    threads: network_threads
    resources:
        mem_mb=memory(4000),
        runtime=minutes(30),
        gpu=network_gpus,
    params:
        backbone=lambda wildcards: STUDY.backbones[wildcards.backbone].text_params(),
        prompts=lambda wildcards: DATASETS[wildcards.dataset].model_dump(
            mode="json", include={"prompts", "prompt_names"}
        ),
        version=VERSIONS["text"],
        files=outside_state(backbone_files),
    message:
        "text embeddings of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/embed_text.py"
