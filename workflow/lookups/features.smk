"""Input functions and constants of features.smk."""


def whole_name(wildcards):
    """The dataset whose rows another's are taken from."""
    return WHOLE[wildcards.dataset]
