"""Makes rules for the jobs and targets of each analysis that the package declares."""

from functools import partial

from dpprobe.analyses.analysis import JobSize
from dpprobe.analysis_registry import load_analyses
from dpprobe.stage_versions import VERSIONS

ANALYSES = {analysis.name: analysis for analysis in load_analyses()}


def measurement_outputs(analysis):
    """Lists the outputs of an analysis's job: first outputs without a name, then named outputs."""
    outputs = analysis.measurement.outputs
    unnamed = [f"<results>/{path}" for name, path in outputs.items() if not name]
    return unnamed, {
        name: f"<results>/{path}" for name, path in outputs.items() if name
    }


def measurement_params(analysis):
    """Makes the params of an analysis's job: the analysis's block of the study, declared params, and version."""

    params = declared_params(analysis.measurement.params)
    if analysis.options is not None:
        block = STUDY.block(analysis.options)
        params = {"options": dumped(block) if block else None, **params}
    return {**params, "version": VERSIONS[analysis.name]}


def measurement_resources(analysis):
    """Makes the functions for a job's memory (MB) and time (minutes), more on each attempt, and for GPUs."""

    def cost(wildcards, input):
        size = JobSize(
            inputs={name: listed(paths) for name, paths in input.items()},
            measure_mb=size_mb,
            count_rows=lambda: table_rows(wildcards),
        )
        return analysis.measurement.cost(STUDY, dict(wildcards.items()), size)

    return {
        "mem_mb": lambda wildcards, input, attempt: int(
            cost(wildcards, input).memory_mb * attempt
        ),
        "runtime": lambda wildcards, input, attempt: int(
            cost(wildcards, input).minutes * attempt
        ),
        **({"gpu": device_gpus} if analysis.measurement.on_device else {}),
    }


def listed(paths):
    """Returns the paths of an input as a list; Snakemake passes a single path as a string."""
    return [paths] if isinstance(paths, str) else list(paths)


def shown_outputs(analysis, dataset):
    """Lists an analysis's tables and figures for one dataset, or (None) for all datasets together."""
    return [
        path
        for exhibit in (analysis.exhibits if analysis.target_shows else ())
        for path in exhibits_by_dataset(exhibit).get(dataset, [])
    ]


def dataset_outputs(analysis, dataset):
    """Lists all files of an analysis for one dataset."""
    files = analysis.list_files(STUDY, "<results>", dataset)
    return [*files, *shown_outputs(analysis, dataset)]


def analysis_outputs(analysis):
    return [
        *shown_outputs(analysis, None),
        *of_all_datasets(partial(dataset_outputs, analysis)),
    ]


def section_inputs():
    """Makes the input functions of the report's sections, by the declared names of inputs."""
    return {
        name: paths
        for analysis in ANALYSES.values()
        if analysis.section is not None
        for name, paths in declared_inputs(analysis.section.needs).items()
    }


MEASURED = [each for each in ANALYSES.values() if each.measurement is not None]

for analysis in MEASURED:

    rule:
        name:
            analysis.measurement.rule
        input:
            **declared_inputs(analysis.measurement.needs),
        output:
            *measurement_outputs(analysis)[0],
            **measurement_outputs(analysis)[1],
        log:
            f"<logs>/{analysis.measurement.rule}/{{dataset}}/{{backbone}}.log",
        benchmark:
            f"<benchmarks>/{analysis.measurement.rule}/{{dataset}}/{{backbone}}.tsv"
        wildcard_constraints:
            dataset=names(analysis.datasets(STUDY)),
            backbone=names(analysis.backbones(STUDY)),
        conda:
            "../../envs/training.yaml"
        threads: analysis.measurement.threads
        resources:
            **measurement_resources(analysis),
        params:
            **measurement_params(analysis),
        message:
            f"{analysis.measurement.words} of {{wildcards.dataset}}, {{wildcards.backbone}}"
        script:
            "../../scripts/measure_analysis.py"

    describe_rule(
        analysis.measurement.rule,
        f"{analysis.measurement.words} (analysis {analysis.name})",
    )


for analysis in MEASURED:

    rule:
        name:
            analysis.target or analysis.name
        input:
            later(analysis_outputs, analysis),

    describe_rule(
        analysis.target or analysis.name,
        f"{analysis.measurement.words} of every dataset, with tables and figures",
    )
    for dataset in analysis.list_named_datasets(STUDY):

        rule:
            name:
                f"{analysis.name}_{dataset}"
            input:
                later(dataset_outputs, analysis, dataset),

        describe_rule(
            f"{analysis.name}_{dataset}",
            f"{analysis.measurement.words} of {dataset}",
        )
