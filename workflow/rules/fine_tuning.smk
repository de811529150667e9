from dpprobe.data.promise_facts import promise_facts
from dpprobe.results.network_record import NETWORK_FILES
from dpprobe.study.network_methods import network_methods
from dpprobe.stage_versions import VERSIONS


# Activations of the frozen blocks, computed once as feature shards and read for every epsilon, seed and trial. A
# subsample's activations are computed from the subsample's table.
use rule extract_features as extract_cut with:
    """Activations before a network's last blocks, one shard."""
    output:
        "<results>/cuts/{dataset}/{backbone}/blocks-{blocks}/{split}/shard-{shard}-of-{shards}.h5",
    log:
        "<logs>/extract_cut/{dataset}/{backbone}/blocks-{blocks}/{split}/shard-{shard}-of-{shards}.log",
    benchmark:
        "<benchmarks>/extract_cut/{dataset}/{backbone}/blocks-{blocks}/{split}/shard-{shard}-of-{shards}.tsv"
    wildcard_constraints:
        dataset=names(DATASETS),
        blocks=r"\d+",
        shard=r"\d{5}",
        shards=r"\d{5}",
    params:
        backbone=backbone_params,
        batch_size=STUDY.features.batch_size,
        dtype=STUDY.features.dtype,
        precision=STUDY.features.precision,
        features=VERSIONS["features"],
        version=VERSIONS["cuts"],
        files=outside_state(backbone_files),
    message:
        "activations of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}, before its last "
        "{wildcards.blocks} blocks, shard {wildcards.shard} of {wildcards.shards}"


use rule write_manifest as write_cut_manifest with:
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
    params:
        promise=lambda wildcards: promise_facts(DATASETS[wildcards.dataset]).to_dict(),
        version=VERSIONS["cuts"],
    message:
        "manifest of activations of {wildcards.dataset} {wildcards.split}, {wildcards.backbone}, before its last "
        "{wildcards.blocks} blocks"


rule cuts:
    """Activations that fine-tuning starts from."""
    input:
        later(FILES.list_cuts),


# One job trains a network of one seed, so that several GPUs train in parallel; another job makes the cell of all seeds.
# As in training, networks in the store are reused by linking them to the outputs.
rule tune_network:
    """A fine-tuned network of one seed."""
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=feature_shards,
        rows=tuned_rows,
        cuts=cut_paths,
        tables=tuned_tables,
        weights=backbone_files,
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        choice=searched_values,
        public=network_files,
    output:
        expand(
            "<results>/networks/{dataset}/{backbone}/{method}/eps-{epsilon}/seed-{index}/{file}",
            file=NETWORK_FILES,
            allow_missing=True,
        ),
    log:
        "<logs>/tune_network/{dataset}/{backbone}/{method}/eps-{epsilon}/seed-{index}.log",
    benchmark:
        "<benchmarks>/tune_network/{dataset}/{backbone}/{method}/eps-{epsilon}/seed-{index}.tsv"
    wildcard_constraints:
        method=names(network_methods(STUDY)),
        index=r"\d+",
    conda:
        "../../envs/training.yaml"
    threads: tuning_threads
    resources:
        mem_mb=tuning_memory,
        runtime=tuning_minutes,
        gpu=tuning_gpus,
    params:
        methods=method_params,
        backbone=backbone_params,
        seed=STUDY.seed,
        privacy=privacy_params,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        trained=VERSIONS["training"],
        version=VERSIONS["fine_tuning"],
        files=outside_state(backbone_files, network_files),
    message:
        "network {wildcards.index} of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, "
        "epsilon {wildcards.epsilon}"
    script:
        "../../scripts/tune_network.py"


rule gather_networks:
    """A cell of the fine-tuned networks of all seeds."""
    input:
        networks=lambda wildcards: FILES.list_networks([wildcards_cell(wildcards)]),
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=feature_shards,
        cuts=cut_paths,
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        choice=searched_values,
        public=network_files,
        overlap=overlap_counts,
    output:
        expand(
            "<results>/cells/{dataset}/{backbone}/{method}/eps-{epsilon}/{file}",
            file=FILES.cell_files,
            allow_missing=True,
        ),
    log:
        "<logs>/gather_networks/{dataset}/{backbone}/{method}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/gather_networks/{dataset}/{backbone}/{method}/eps-{epsilon}.tsv"
    wildcard_constraints:
        method=names(network_methods(STUDY)),
    conda:
        "../../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, factor=0.1),
        runtime=minutes(20),
    params:
        methods=method_params,
        seeds=STUDY.seeds,
        seed=STUDY.seed,
        privacy=privacy_params,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        version=VERSIONS["fine_tuning"],
        statement=VERSIONS["statement"],
        files=outside_state(network_files),
    message:
        "networks of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, "
        "epsilon {wildcards.epsilon}"
    script:
        "../../scripts/gather_networks.py"
