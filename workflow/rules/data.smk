rule prepare_data:
    input:
        lambda wildcards: DATASETS[wildcards.dataset].input_files(),
    output:
        train=f"{DATA}/{{dataset}}/train.parquet",
        test=f"{DATA}/{{dataset}}/test.parquet",
        info=f"{DATA}/{{dataset}}/dataset.json",
    log:
        f"{RESULTS}/logs/prepare_data/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/prepare_data/{{dataset}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(120),
    params:
        options=lambda wildcards: DATASETS[wildcards.dataset].preparation_params(),
        state=source_state,
        version=VERSIONS["data"],
    message:
        "split tables of {wildcards.dataset}"
    script:
        "../../scripts/prepare_data.py"
