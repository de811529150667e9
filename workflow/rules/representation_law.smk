from dpprobe.analyses.representation_law.law_record import LAYERS
from dpprobe.stage_versions import VERSIONS


# Representation laws of the frozen and the tuned networks of each (dataset, backbone): not private, and only if the
# study has the block `representation_law`.
rule measure_law:
    """Representation laws of networks (analysis representation_law)."""
    input:
        train="<data>/{dataset}/train.parquet",
        test="<data>/{dataset}/test.parquet",
        weights=backbone_files,
        networks=law_networks_paths,
    output:
        # as in training, a record in the store is reused by a link
        f"<results>/{LAYERS}/{{dataset}}/{{backbone}}/law.json",
    log:
        "<logs>/measure_law/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/measure_law/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/training.yaml"
    threads: network_threads
    resources:
        mem_mb=law_memory,
        runtime=law_minutes,
        gpu=network_gpus,
    params:
        options=dumped(STUDY.representation_law) if STUDY.representation_law else None,
        networks=LAW_NETWORKS,
        methods={method: dumped(STUDY.methods[method]) for method, _ in LAW_NETWORKS},
        backbone=backbone_params,
        seed=STUDY.seed,
        version=VERSIONS["representation_law"],
        files=outside_state(backbone_files),
    message:
        "representation laws of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/measure_law.py"


rule representation_law:
    """Representation laws of every dataset, with tables and figures."""
    input:
        later(of_all_datasets, law_outputs),
