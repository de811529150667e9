from dpprobe.heads.auto import asked_options
from dpprobe.privacy.limits import INFINITE
from dpprobe.stage_versions import VERSIONS


# One job audits every method of a (dataset, backbone, epsilon), because a small audit takes less time than starting
# Python. An audit trains its own heads. As in training, audits in the store are reused by linking them to the outputs.
rule audit_cells:
    """Audits of private heads: lower bounds on epsilon, one job per epsilon."""
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        # only membership inference attacks read the rows
        shards=lambda wildcards: (
            FILES.list_shards(wildcards.dataset, wildcards.backbone, "train")
            if STUDY.audit.membership
            else []
        ),
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        public=method_files,
    output:
        audit_outputs(audited_methods(private=True)),
    log:
        "<logs>/audit_cells/{dataset}/{backbone}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/audit_cells/{dataset}/{backbone}/eps-{epsilon}.tsv"
    wildcard_constraints:
        epsilon=names(
            sorted({cell.epsilon for cell in AUDITED_CELLS} - {INFINITE}),
        ),
    conda:
        "../../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=training_memory,
        runtime=audit_minutes,
        # only membership inference attacks train heads on the device
        gpu=(
            fit_gpus(lambda wildcards: audited_methods(wildcards.epsilon))
            if STUDY.audit and STUDY.audit.membership
            else 0
        ),
    params:
        methods=lambda wildcards: {
            name: asked_options(STUDY.methods[name])
            for name in audited_methods(wildcards.epsilon)
        },
        options=dumped(STUDY.audit) if STUDY.audit else None,
        seeds=STUDY.seeds,
        seed=STUDY.seed,
        privacy=privacy_params,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        trained=VERSIONS["training"],
        version=VERSIONS["audit"],
        files=outside_state(method_files),
    message:
        "audit of {wildcards.dataset}, {wildcards.backbone}, epsilon {wildcards.epsilon}"
    script:
        "../../scripts/audit.py"


# For comparison, membership inference attacks also run on cells without a guarantee.
use rule audit_cells as audit_cells_without_privacy with:
    """Audits of heads without a privacy budget."""
    output:
        audit_outputs(audited_methods(INFINITE)),
    wildcard_constraints:
        epsilon=names(
            sorted({cell.epsilon for cell in AUDITED_CELLS} & {INFINITE}),
        ),


rule audits:
    """Audits of every dataset, with figures."""
    input:
        later(of_all_datasets, audit_files),
