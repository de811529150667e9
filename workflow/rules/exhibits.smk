"""A rule for each exhibit: the tables and figures that the package declares."""

from dpprobe.reporting.registry import EXHIBITS


# Factories: a loop's variable would hold its last value by the time that Snakemake asks for files.
def exhibit_inputs(exhibit):
    """Makes the input functions of an exhibit."""

    def named(need):
        return lambda wildcards: need.paths(FILES, dict(wildcards.items()))

    return {name: named(need) for name, need in exhibit.needs.items()}


def exhibit_outputs(exhibit):
    """Lists the outputs of an exhibit, marked for Snakemake's report where people may see them."""

    def marked(output):
        paths = [f"<results>/{path}" for path in output.paths]
        files = paths if output.several else paths[0]
        if output.caption is None:
            return files
        return report(
            files,
            caption=f"../../resources/captions/{output.caption}",
            category=exhibit.category,
            subcategory=exhibit.subcategory,
            labels=dict(output.labels) or None,
        )

    return {output.name: marked(output) for output in exhibit.list_outputs(STUDY)}


def exhibit_params(exhibit):
    """Makes the params of an exhibit."""

    def of_job(value):
        return lambda wildcards: value(STUDY, dict(wildcards.items()))

    return {
        name: of_job(value) if callable(value) else value
        for name, value in exhibit.params.items()
    }


def exhibit_words(exhibit):
    """Returns what a run says of an exhibit's job."""
    return re.sub(r"\{(\w+)\}", r"{wildcards.\1}", exhibit.words)


for exhibit in EXHIBITS:

    rule:
        name:
            exhibit.name
        input:
            **exhibit_inputs(exhibit),
        output:
            **exhibit_outputs(exhibit),
        log:
            exhibit.locate_log("<logs>", ".log"),
        benchmark:
            exhibit.locate_log("<benchmarks>", ".tsv")
        wildcard_constraints:
            **{name: names(listed(STUDY)) for name, listed in exhibit.only.items()},
        conda:
            "../../envs/dpprobe.yaml"
        threads: 1
        resources:
            mem_mb=memory(exhibit.memory_mb, factor=exhibit.memory_factor),
            runtime=minutes(exhibit.minutes, per_gb=exhibit.minutes_per_gb),
        params:
            **exhibit_params(exhibit),
        message:
            exhibit_words(exhibit)
        script:
            "../../scripts/make_exhibit.py"
