# One rule for each table or figure that the package declares (an exhibit).


include: "../lookups/exhibits.smk"


for exhibit in EXHIBITS:

    rule:
        name:
            exhibit.name
        input:
            **declared_inputs(exhibit.needs),
        output:
            **exhibit_outputs(exhibit),
        log:
            exhibit.locate_log("<logs>", ".log"),
        benchmark:
            exhibit.locate_log("<benchmarks>", ".tsv")
        wildcard_constraints:
            **{name: names(listed(STUDY)) for name, listed in exhibit.only.items()},
        conda:
            "../../envs/report.yaml"
        threads: 1
        resources:
            mem_mb=memory(exhibit.memory_mb, factor=exhibit.memory_factor),
            runtime=minutes(exhibit.minutes),
        params:
            **declared_params(exhibit.job_params),
        message:
            exhibit_words(exhibit)
        script:
            "../../scripts/make_exhibit.py"

    describe_rule(exhibit.name, f"{exhibit.words}; made by {exhibit.make}")
