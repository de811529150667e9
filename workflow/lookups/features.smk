"""Input functions and constants of features.smk."""


def whole_name(wildcards):
    """The whole dataset of a subsample."""
    return WHOLE[wildcards.dataset]
