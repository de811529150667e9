# One job trains every method of a (dataset, backbone, epsilon). Its outputs are marked with update():
# they are still there when the job starts, and cells that are current are kept.
rule train_heads:
    input:
        train=f"{RESULTS}/features/{{dataset}}/{{backbone}}/train/manifest.json",
        test=f"{RESULTS}/features/{{dataset}}/{{backbone}}/test/manifest.json",
        shards=lambda wildcards: [
            path
            for split in ("train", "test")
            for path in shard_paths(wildcards.dataset, wildcards.backbone, split)
        ],
        plans=f"{RESULTS}/calibration/{{dataset}}/eps-{{epsilon}}.json",
    output:
        update(
            expand(
                f"{RESULTS}/cells/{{{{dataset}}}}/{{{{backbone}}}}/{{method}}/eps-{{{{epsilon}}}}/{{file}}",
                method=private_methods() or ["none"],
                file=CELL_FILES,
            )
        ),
    log:
        "logs/train_heads/{dataset}/{backbone}/eps-{epsilon}.log",
    benchmark:
        "benchmarks/train_heads/{dataset}/{backbone}/eps-{epsilon}.tsv"
    wildcard_constraints:
        epsilon=r"[0-9][0-9.e+-]*",
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        # float16 on disk is float32 in memory
        mem_mb=memory(1500, factor=3.0),
        runtime=minutes(30, per_gb=120),
    params:
        methods=lambda wildcards: methods_params(wildcards.epsilon),
        seeds=STUDY.seeds,
        seed=STUDY.seed,
        mode=STUDY.mode,
        version=VERSIONS["training"],
    message:
        "heads of {wildcards.dataset}, {wildcards.backbone}, epsilon {wildcards.epsilon}"
    script:
        "../../scripts/train_heads.py"


# Without a privacy budget other methods train: the non-private ones, and the private ones only where the
# study lists epsilon inf.
use rule train_heads as train_heads_without_privacy with:
    output:
        update(
            expand(
                f"{RESULTS}/cells/{{{{dataset}}}}/{{{{backbone}}}}/{{method}}/eps-{{{{epsilon}}}}/{{file}}",
                method=STUDY.job_methods(INFINITE) or ["none"],
                file=CELL_FILES,
            )
        ),
    wildcard_constraints:
        epsilon=INFINITE,
