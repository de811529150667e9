"""Other workflows use the rules as a module, also in the form that `snakedeploy` writes.

`make test-snakemake` runs these tests with the oldest supported Snakemake.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.git import git
from tests.support.programs import run_program

from .conftest import SMALL, TIMEOUT, WarmPython, copy_code, count_rules, on_cluster

pytestmark = pytest.mark.slow

# Only non-private heads, which need no noise.
TINY: dict[str, Any] = SMALL | {
    "study": "tiny",
    "methods": {"ceiling": {"head": "nonprivate"}},
    "epsilons": ["inf"],
}

# Output of snakedeploy 0.17.1: templates/use_module.smk.jinja, filled in by deploy.py.
DEPLOYED = """from snakemake.utils import min_version


min_version("6.10.0")


configfile: "config/config.yaml"


# declare https://github.com/someone/dpprobe as a module
module dpprobe:
    snakefile: 
        {snakefile}
    config:
        config


# use all rules from https://github.com/someone/dpprobe
use rule * from dpprobe
"""  # noqa: W291

# A workflow with its own rules and blocks. The table that it copies depends on all earlier jobs.
MIXED = """
configfile: "own.yaml"


rule everything:
    input:
        "copy.md",


rule copy_table:
    input:
        "part/results/tables/accuracy.md",
    output:
        "copy.md",
    params:
        mine=config["mine"],
    shell:
        "cp {input} {output}"


onstart:
    print("own start")


onsuccess:
    print("own success")


module dpprobe:
    snakefile:
        SNAKEFILE
    config:
        config["probe"]
    prefix:
        "part"


use rule * from dpprobe as dp_*


use rule write_manifest from dpprobe as dp_write_manifest with:
    threads: 1
"""


def module_text(snakefile: Path, *, config: str | None = "config", statement: str = "") -> str:
    """Returns a workflow that contains only the module."""
    lines = [f'module dpprobe:\n    snakefile: "{snakefile}"']
    lines += [f"    config: {config}"] if config else []
    return "\n".join(["configfile: 'own.yaml'", *lines, "use rule * from dpprobe", statement])


def write(folder: Path, text: str, values: Mapping[str, Any], **more: Mapping[str, Any]) -> None:
    (folder / "Snakefile").write_text(text)
    for name, content in {"own": values, **more}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(content)))


def snakemake(
    folder: Path, *words: str, check: bool = True, variables: Mapping[str, str] | None = None
) -> str:
    """Runs the Snakefile in a folder without a profile; returns its output."""
    options = ["--profile", "none", "--quiet", "host", "--cores", "2"]
    command = [sys.executable, "-m", "snakemake", *options, *words]
    done = run_program(
        command if variables else WarmPython.asked(command),
        joined=True,
        cwd=folder,
        env=os.environ | dict(variables or {}),
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode == 0) == check, done.stdout[-6000:]
    return done.stdout


def planned_jobs(
    folder: Path, *words: str, variables: Mapping[str, str] | None = None
) -> Counter[str]:
    return count_rules(snakemake(folder, "--dry-run", *words, variables=variables))


def deploy(repository: Path, folder: Path, snakefile: str) -> Path:
    """Writes the files that snakedeploy writes."""
    shutil.copytree(repository / "config", folder / "config")
    shutil.copytree(repository / "profiles", folder / "profiles")
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(DEPLOYED.format(snakefile=snakefile))
    return folder


@pytest.fixture
def shim(repository: Path) -> Path:
    return repository / "workflow/Snakefile"


def test_the_standard_place_plans_what_the_root_plans(repository: Path, tmp_path: Path) -> None:
    places = (repository / "Snakefile", repository / "workflow/Snakefile")
    study = ("--configfile", str(repository / "config/config.yaml"))
    root, standard = (planned_jobs(tmp_path, "-s", str(place), *study) for place in places)
    assert root["train_heads"] == 10
    assert root.pop("all") == standard.pop("study") == 1
    assert root == standard


def test_a_deployed_workflow_plans_the_default_study(
    repository: Path, shim: Path, tmp_path: Path
) -> None:
    deploy(repository, tmp_path, f'"{shim}"')
    assert not (tmp_path / "config/config.yaml").is_symlink(), "a person edits it"
    deployed = planned_jobs(tmp_path)
    assert (deployed["train_heads"], deployed["study"]) == (10, 1)


def test_a_workflow_is_deployed_from_a_tag(repository: Path, tmp_path: Path) -> None:
    """git redirects the host to a folder, so no network is needed."""
    host = tmp_path / "host/someone/dpprobe"
    copy_code(repository, host)
    git(host, "init", "--quiet")
    git(host, "add", "--all")
    git(host, "commit", "--quiet", "-m", "all")
    git(host, "tag", "v0.1.0")
    place = 'github("someone/dpprobe", path="workflow/Snakefile", tag="v0.1.0")'
    folder = deploy(repository, tmp_path / "deployed", place)
    (folder / "config/config.yaml").write_text(yaml.safe_dump(TINY))
    variables = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/host/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    planned = planned_jobs(folder, variables=variables)
    assert (planned["train_heads_without_privacy"], planned["study"]) == (1, 1)
    # scripts come from the host too
    snakemake(folder, "data", variables=variables)
    assert (folder / "data/digits/train.parquet").is_file()


def test_a_module_runs_next_to_other_rules(shim: Path, tmp_path: Path) -> None:
    """The module's jobs run on a cluster, its study is part of config, its rules are renamed."""
    write(tmp_path, MIXED.replace("SNAKEFILE", f'"{shim}"'), {"mine": 1, "probe": TINY})
    words = on_cluster(
        tmp_path,
        f"{WarmPython.job()} >>jobs.log 2>&1; echo $? >ended; echo 17",
        'test "$(cat ended)" = 0 && echo success || echo failed',
    )
    said = snakemake(tmp_path, *words, "--latency-wait", "2")
    assert ("own start" in said, "own success" in said) == (True, True)
    assert "| digits | inf | 9" in (tmp_path / "copy.md").read_text()
    # the run marked its folders for other runs, and removed the marks at its end
    assert not list((tmp_path / "part").rglob(".runs/*.json"))
    assert list((tmp_path / ".snakemake/dpprobe").glob("*.json")), "its jobs had a snapshot"
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == ["data", "results"]
    again = snakemake(tmp_path, "--dry-run")
    assert "Nothing to be done" in again, again[-3000:]
    # the rules' own check of results works with renamed rules
    cell = next((tmp_path / "part/results/cells").rglob("metrics.json"))
    cell.write_text(cell.read_text().replace('"', "'", 1))
    assert planned_jobs(tmp_path)["dp_train_heads_without_privacy"] == 1


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("", "results"),
        ("    prefix: 'a'", "a/results"),
        ("    replace_prefix: {'results/': 'b/'}", "b"),
    ],
)
def test_a_prefix_moves_the_folders_of_the_study(
    shim: Path, tmp_path: Path, line: str, folder: str
) -> None:
    text = module_text(shim).replace("use rule", f"{line}\nuse rule")
    write(tmp_path, text, TINY)
    said = snakemake(tmp_path, "--dry-run", f"{folder}/summary/digits.parquet")
    assert count_rules(said)["summarise"] == 1


def test_a_failed_update_of_the_other_workflow_is_rolled_back(shim: Path, tmp_path: Path) -> None:
    rule = """
rule note:
    output: update("notes.txt")
    shell: "echo lost >{output}; false"
"""
    write(tmp_path, module_text(shim, statement=rule), TINY)
    (tmp_path / "notes.txt").write_text("kept")
    snakemake(tmp_path, "--force", "note", check=False)
    assert (tmp_path / "notes.txt").read_text() == "kept"


WRONG: dict[str, Any] = TINY | {"seeds": -1}


@pytest.mark.parametrize(
    ("values", "config", "message"),
    [
        (TINY, None, "module dpprobe: has no study; below its `snakefile:`, write `config:"),
        (WRONG, "config", r"own\.yaml:\d+: seeds: -1"),
        ({"a": {"b": WRONG}}, "config['a']['b']", r"own\.yaml:\d+: seeds: -1"),
        (WRONG, "dict(config)", "config of the module dpprobe: seeds: -1"),
    ],
)
def test_a_wrong_module_is_one_line(
    shim: Path, tmp_path: Path, values: dict[str, Any], config: str | None, message: str
) -> None:
    write(tmp_path, module_text(shim, config=config), values)
    said = snakemake(tmp_path, "--dry-run", check=False)
    assert re.search(f"^{message}", said, re.MULTILINE), said[-3000:]
    assert "Traceback" not in said


def test_two_studies_are_not_merged(shim: Path, tmp_path: Path) -> None:
    """One study is in the deployed workflow's file, the other on the command line."""
    other = {"study": "other", "methods": {"sgd": {"head": "sgd"}}}
    write(tmp_path, module_text(shim), TINY, other=other, seeds={"seeds": 3})
    said = snakemake(tmp_path, "--dry-run", "--configfile", "other.yaml", check=False)
    assert "--configfile other.yaml: a second study beside own.yaml" in said
    # values without a study name change the existing study
    snakemake(tmp_path, "--dry-run", "--configfile", "seeds.yaml")


def test_two_studies_do_not_share_a_run(shim: Path, tmp_path: Path) -> None:
    second = f'module more:\n    snakefile: "{shim}"\n    config: config | {{"seeds": 3}}'
    text = module_text(shim, statement=f"{second}\nuse rule * from more as more_*")
    write(tmp_path, text, TINY)
    said = snakemake(tmp_path, "--dry-run", check=False)
    assert "module more: a second study in one workflow; run each study by a command" in said


def test_a_missing_package_is_named_in_one_line(repository: Path, tmp_path: Path) -> None:
    """This also holds with profiles/default, which names the package's logger."""
    deploy(repository, tmp_path, f'"{repository / "workflow/Snakefile"}"')
    start = (
        "import sys; from importlib.machinery import PathFinder; from pathlib import Path\n"
        "plugin, find = 'snakemake_logger_plugin_dpprobe', PathFinder.find_spec\n"
        "sys.path[:] = [each for each in sys.path if not Path(each, plugin).is_dir()]\n"
        # an installation has a folder with this name for other files than modules
        "PathFinder.find_spec = lambda name, *a: None if name == 'dpprobe' else find(name, *a)\n"
        "from snakemake.cli import main; main(['--dry-run'])"
    )
    # isolated, because the tests' environment may name the package's folder
    done = run_program([sys.executable, "-I", "-c", start], joined=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout
    assert [text for text in done.stdout.splitlines() if "pip install" in text] == [
        "dpprobe: the Python of Snakemake lacks the package dpprobe; run there: "
        'pip install "dpprobe[workflow]" (in a clone: make environment)'
    ]
    assert "usage:" not in done.stdout
