"""Input functions and constants of features.smk."""


def whole_name(wildcards):
    return WHOLE[wildcards.dataset]
