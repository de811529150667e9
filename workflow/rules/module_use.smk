"""The study that the rules run: of --configfile or config.yaml, or the `config` of a workflow that uses them as a module."""

from pathlib import Path

import yaml
from snakemake.path_modifier import PathModifier

from dpprobe.study.study_lines import StudyLines
from dpprobe.study.yaml_file import written_path

MODIFIER = workflow.modifier
IS_MODULE = len(workflow.modifier_stack) > 1
OUTER = workflow.modifier_stack[0].globals

# Snakemake reads a module's files again for each `use rule` statement. Only the first reading starts runs and replaces
# parts of Snakemake.
NAMESPACES = OUTER.setdefault("_dpprobe", [])
IS_FIRST = not NAMESPACES
NAMESPACES.append(globals())


def namespace_of(rule):
    """The namespace that read a rule of these files; None for a rule of a workflow that uses them as a module."""
    read_by = getattr(rule, "module_globals", None)
    return next((each for each in NAMESPACES if each is read_by), None)


def rule_name(name):
    """The name of a rule in this run, because `use rule * from dpprobe as dp_*` changes it."""
    return MODIFIER.modify_rulename(name)


def is_used(name):
    """Returns True unless `use rule` leaves out a rule."""
    return MODIFIER.avail_rulename(name) is not None


def study_files():
    """The study's files, ordered so that values in later files replace values in earlier files."""
    given = list(workflow.overwrite_configfiles or [])
    read = workflow.configfiles[len(given) :] if IS_MODULE else []
    return [written_path(Path(file)) for file in [*read, *given] or ["config.yaml"]]


def find_block(values, wanted, *names):
    """The keys that lead to a block in values: () if the block is the values themselves, None if it is not found."""
    if values is wanted:
        return names
    blocks = values.items() if isinstance(values, dict) else ()
    found = (find_block(block, wanted, *names, str(name)) for name, block in blocks)
    return next((path for path in found if path is not None), None)


def study_lines():
    """Locates the study's keys in files, for error messages with lines."""
    block = find_block(OUTER["config"], config) if IS_MODULE else ()
    if block is None:  # the other workflow computes it
        return StudyLines(files=[], origin=f"config of the module {MODIFIER.namespace}")
    return StudyLines(
        files=study_files(),
        overrides=workflow.config_settings.config,
        block=".".join(block),
    )


def require_config():
    """Raises StudyError for a module without a study, or with two that Snakemake has merged."""
    if not MODIFIER.skip_configfile:
        raise StudyError(
            f"module {MODIFIER.namespace}: has no study; below its `snakefile:`, write `config: config`"
        )
    given = [Path(file) for file in workflow.overwrite_configfiles or []]
    if config is not OUTER["config"] or not given:
        return
    studies = {}
    for file in study_files():
        if name := (yaml.safe_load(file.read_text(encoding="utf-8-sig")) or {}).get(
            "study"
        ):
            studies.setdefault(name, file)
    if len(studies) > 1:
        first, second = list(studies.values())[:2]
        raise StudyError(
            f"--configfile {second}: a second study beside {first}, and Snakemake would merge them; copy it over "
            f"{first}, or name it in the line `configfile:` of the Snakefile"
        )


# A module's `prefix` and `replace_prefix` move the study's whole folders, because not only rules read their paths. The
# user's own data is read from the study's path, without a prefix.
# Upstream: no thread is known; Snakemake changes only the paths of rules.
# Test: tests/workflow/test_modules.py::test_a_prefix_moves_the_folders_of_the_study
MOVE = MODIFIER.path_modifier.replace_prefix
if IS_MODULE:
    MODIFIER.path_modifier = PathModifier(None, None, workflow)


def module_folders():
    """The study's folders, as the module statement moves them."""
    defaults = {"data_dir": "data", "results_dir": "results"}
    folders = {name: config.get(name, default) for name, default in defaults.items()}
    return {name: MOVE(f"{folder}/").rstrip("/") for name, folder in folders.items()}
