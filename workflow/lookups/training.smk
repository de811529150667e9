"""Input functions and constants of training.smk."""


def overlap_counts(wildcards):
    """The counts of the near-duplicate check, if the study has one."""
    counts = f"<results>/overlap/{wildcards.dataset}/{wildcards.backbone}.json"
    return counts if STUDY.overlap else []


def heads_params(epsilon):
    """The options of all methods of linear heads that train at an epsilon."""
    return {
        name: asked_options(STUDY.methods[name])
        for name in head_methods(STUDY, epsilon)
    }


def located_method(name, dataset, backbone):
    """The options of a method, with its files' paths for one dataset and backbone."""
    return STUDY.methods[name].fill_paths(dataset=dataset, backbone=backbone)


def method_files(wildcards):
    """Public files with initial weights of a job's methods."""
    place = (wildcards.dataset, wildcards.backbone)
    return sorted(
        {
            path
            for name in head_methods(STUDY, wildcards.epsilon)
            for path in located_method(name, *place).input_files()
        }
    )


def private_methods():
    """The names of the study's private methods of linear heads."""
    return [
        name
        for name, method in STUDY.methods.items()
        if method.private and not method.tunes_network
    ]
