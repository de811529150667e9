rule prepare_data:
    input:
        lambda wildcards: STUDY.datasets[wildcards.dataset].input_files(),
    output:
        train=f"{DATA}/{{dataset}}/train.parquet",
        test=f"{DATA}/{{dataset}}/test.parquet",
        info=f"{DATA}/{{dataset}}/dataset.json",
    log:
        "logs/prepare_data/{dataset}.log",
    benchmark:
        "benchmarks/prepare_data/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(120),
    params:
        options=dataset_params,
        version=VERSIONS["data"],
    message:
        "split tables of {wildcards.dataset}"
    script:
        "../../scripts/prepare_data.py"
