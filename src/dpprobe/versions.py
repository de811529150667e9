"""The version of each stage's outputs.

Nothing watches code: Snakemake's trigger for it goes by the times of scripts, which a clone
changes, and does not see the package; profiles/default switches it off. Each stage passes its
number here as a parameter: raise it when what the stage writes changes, and every finished study
redoes that stage and what descends from it.
"""

VERSIONS = {
    "download": 1,
    "data": 2,
    "features": 2,
    "text": 2,
    "overlap": 1,
    "calibration": 2,
    "training": 2,
    "embedding": 1,
    "summary": 3,
    "zero_shot": 1,
    "few_shot": 2,
    "figures": 5,
    "tables": 1,
    "papers": 4,
    "tracking": 5,
    "report": 4,
    "tsne_page": 2,
}
