"""dpprobe: differentially private heads on frozen features.

Run `snakemake --cores all` for the default study (config.yaml), with `--configfile FILE` for another study. Another
workflow can use these rules as a module (docs/workflow.md).
"""

import os
from importlib.util import find_spec
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import min_version

# Earlier versions give a module's rules the paths of the workflow that uses it.
min_version("9.20.0")

for package in ("dpprobe", "snakemake_executor_plugin_cluster_generic"):
    if find_spec(package) is None:
        raise WorkflowError(
            f"dpprobe: the Python of Snakemake lacks the package {package}; run there: "
            'pip install "dpprobe[workflow]" (in a clone: make environment)'
        )

from dpprobe.errors import ConfigError
from dpprobe.garbage_collection import search_rarely
from dpprobe.study.yaml_file import check_yaml

search_rarely()


class StudyError(WorkflowError):
    """A study has faults; the error's message has one line per fault."""


# A study given with --configfile replaces the default study. Snakemake would merge the two studies
# (snakemake/snakemake#730), and a study of one dataset would silently train on the default dataset as well. A module
# has the study of the workflow that uses it.
if len(workflow.modifier_stack) == 1 and not workflow.overwrite_configfiles:
    try:  # Snakemake would blame the line below for faults of the file
        check_yaml(Path("config.yaml"))
    except ConfigError as error:
        raise StudyError(str(error)) from None

    configfile: "config.yaml"


# The container image of every rule for `--sdm apptainer` (see docs/cluster.md). Snakemake refuses a path with spaces
# even if no job uses the image.
IMAGE = os.environ.get("DPPROBE_IMAGE", f"{workflow.basedir}/dpprobe.sif")
if IMAGE.split() == [IMAGE] or (
    DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
):

    container: IMAGE


include: "workflow/rules/snakemake_fixes.smk"
include: "workflow/rules/storage.smk"
include: "workflow/rules/common.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/changed_outputs.smk"
include: "workflow/rules/messages.smk"
include: "workflow/rules/resources.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/calibration.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/fine_tuning.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/imbalance.smk"
include: "workflow/rules/overlap.smk"
include: "workflow/rules/analyses.smk"
include: "workflow/rules/representation_law.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/exhibits.smk"
include: "workflow/rules/targets.smk"
include: "workflow/rules/releases.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/tracking.smk"


rule all:
    """The whole study: data, features, heads, analyses, tables, figures, report and MLflow runs."""
    input:
        rules.data.input,
        rules.features.input,
        rules.texts.input,
        rules.overlaps.input,
        rules.heads.input,
        rules.audits.input,
        lambda wildcards: [
            path for analysis in MEASURED for path in analysis_outputs(analysis)
        ],
        rules.representation_law.input,
        rules.imbalance.input,
        rules.figures.input,
        rules.tables.input,
        lambda wildcards: shown_paper_tables(),
        rules.tracking.input,
        rules.html_report.input,
