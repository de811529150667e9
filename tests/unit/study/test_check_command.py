"""A study is checked by a command of its own, which names the line where Snakemake does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from dpprobe.__main__ import main
from dpprobe.study import check_command
from dpprobe.study.study import Study
from tests.support.small_study import STUDY


def check(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["dpprobe", "check", *map(str, files)])
    monkeypatch.setattr("dpprobe.__main__._show_progress", lambda: None)  # it would stay
    main()


def test_a_good_study_is_counted_and_its_command_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    networks: list[bool] = []

    def ask(_: Study, *, network: bool) -> list[str]:
        networks.append(network)
        return []

    monkeypatch.setattr(check_command, "check_dimensions", ask)
    monkeypatch.setattr(check_command, "list_tested", lambda _: ["few test images"])
    first, second = Path("first.yaml"), Path("second.yaml")
    first.write_text(yaml.safe_dump(STUDY))
    second.write_text("epsilons: [1]\nmethods: {sgd: {epochs: 3}}\n")
    with pytest.raises(SystemExit, match="^0$"):
        check(monkeypatch, first)
    counted, unread, tested = capsys.readouterr().out.splitlines()
    assert counted == "first.yaml: 4 cells; run: dpprobe run --cores all --configfile first.yaml"
    assert unread.startswith("Not read yet: images, and labels row by row. The first job")
    assert tested == "few test images"
    with pytest.raises(SystemExit, match="^0$"):
        check(monkeypatch, first, second)
    assert "first.yaml second.yaml: 2 cells" in capsys.readouterr().out
    first.rename("config.yaml")
    with pytest.raises(SystemExit, match="^0$"):
        check(monkeypatch)
    assert "config.yaml: 4 cells; run: dpprobe run --cores all\n" in capsys.readouterr().out
    check_command.read_study([Path("config.yaml")])
    assert networks == [True, True, True, False], "only a check asks the Hub"


def test_a_fault_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("study: x\n\tseeds: 1\n")
    with pytest.raises(SystemExit, match=r"dpprobe: .*study.yaml:2: a tab, .* spaces"):
        check(monkeypatch, path)
    path.write_text(yaml.safe_dump(STUDY | {"seedz": 1}))
    with pytest.raises(SystemExit, match=r"dpprobe: .*study.yaml:\d+: seedz: unknown key"):
        check(monkeypatch, path)


@pytest.mark.parametrize("typed", [[], ["lesion.yaml"], ["lesions"]])
def test_the_study_that_was_meant_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lesions.yaml").write_text(yaml.safe_dump(STUDY))
    name = (typed or ["config.yaml"])[0]
    with pytest.raises(SystemExit) as ended:
        check(monkeypatch, *map(Path, typed))
    assert ended.value.code == (
        f"dpprobe: {name}: no such file; name the file of a study, as in lesions.yaml"
    )


def test_only_readers_that_check_a_study_read_it(repository: Path) -> None:
    """`init` checks its draft but for the classes, which it lists itself."""
    places = ("src/dpprobe/**/*.py", "scripts/*.py", "workflow/**/*.smk")
    callers = {
        f"{path.relative_to(repository)}: {line.strip()}" for place in places
        for path in repository.glob(place)
        for line in path.read_text(encoding="utf-8").splitlines() if "load_study(" in line
        and "def " not in line
    }  # fmt: skip
    assert callers == {
        "src/dpprobe/draft/init_command.py: study = load_study(yaml.safe_load(text))",
        "src/dpprobe/study/check_command.py: study = load_study(values)",
        "src/dpprobe/study/snapshot.py: study = load_study(values)",  # of a run that was checked
        "workflow/rules/common.smk: STUDY = load_study(config)",  # in a job of that run
    }
