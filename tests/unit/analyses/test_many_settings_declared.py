"""What studies ask of analyses: cells, files, jobs, costs and faults, against stored ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.analyses import fairness, representation_law, sites
from dpprobe.analyses.analysis import JobSize, Section, has_several_labels, list_single_label
from dpprobe.analyses.audit import _ceiling_audit, audit_cells, list_audit_marks
from dpprobe.analyses.audit.audit_record import at_least, audit_path, power_in_words
from dpprobe.analyses.audit.options import AuditOptions, MembershipOptions
from dpprobe.analyses.measuring import find_analysis, measure_analysis
from dpprobe.analysis_registry import load_analyses
from dpprobe.errors import DataError
from dpprobe.exhibits.exhibit import many, one, waits
from dpprobe.exhibits.make import read_needs
from dpprobe.heads.registry import method_options
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.columns import or_error
from tests.support.stored_records import check_values

SGD = {"head": "sgd", "batch_size": 32, "epochs": 1}
TUNED = {"head": "fine_tune", "tune": {"blocks": 2}}
METHODS: dict[str, Any] = {
    "sgd": SGD,
    "ours": {"head": "least_squares"},
    "ceiling": {"head": "nonprivate"},
    "tuned": TUNED,
    "auto": {"head": "auto"},
}
BACKBONES = {
    "pixels": {"family": "pixels"},
    "clip": {"family": "open_clip", "model": "ViT-B-32", "pretrained": "openai"},
    "net": {"family": "timm", "model": "vit_tiny_patch16_224", "pretrained": False},
}
DIGITS = {"source": "sklearn", "name": "digits"}
CHEST = {
    "source": "csv",
    "root": ".",
    "train": "rows.csv",
    "label_columns": ["one", "two"],
    "group_columns": ["sex", "age"],
}
SKIN = CHEST | {"group_columns": ["site"]}
FULL: dict[str, Any] = {
    "study": "full",
    "datasets": {"digits": DIGITS, "chest": CHEST, "skin": SKIN},
    "backbones": BACKBONES,
    "methods": METHODS,
    "epsilons": [1, 10, "inf"],
    "delta": 1e-5,
    "seeds": 2,
}
ASKED: dict[str, Any] = {
    "audit": {"membership": {}, "methods": ["sgd", "ceiling", "ours"]},
    "long_tail": {},
    "sites": {"splits": ["equal", "labels"]},
    "fairness": {},
    "representation_law": {},
    "few_shot": {},
    "imbalance": {"datasets": ["digits"], "classes": ["3"], "fractions": [0.5]},
}
ONLY = {"datasets": {"chest": CHEST}}
STUDIES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "everything": ASKED,
    "few": {
        "audit": {"methods": ["sgd"], "epsilons": [10]},
        "tsne": {"split": "train"},
        "long_tail": {"datasets": ["digits"], "memorisation": None, "rows": 1000},
        "sites": {"method": "ours", "backbones": ["clip"], "counts": 4},
        "fairness": {"methods": ["sgd"], "epsilons": [10], "reference": "ours"},
        "representation_law": {"methods": ["tuned"], "epsilons": ["inf"]},
        "few_shot": {"backbones": ["clip"]},
        "methods": {**METHODS, "more": TUNED},
    },
    "one of each": {
        "datasets": {"digits": DIGITS},
        "backbones": {"pixels": BACKBONES["pixels"]},
        "methods": {"sgd": SGD},
        **{name: ASKED[name] for name in ("audit", "fairness", "long_tail")},
    },
    "unknown names": {
        "audit": {"methods": ["sgd", "gone", "sgd"], "epsilons": [3]},
        "long_tail": {"datasets": ["gone", "digits", "digits"]},
        "sites": {"backbones": ["gone"]},
        "fairness": {"methods": ["gone"]},
        "representation_law": {"epsilons": [7]},
    },
    "faults": {
        "audit": {"methods": ["ceiling", "tuned"], "epsilons": ["inf", 1]},
        "long_tail": {"datasets": ["chest", "digits"]},
        "sites": {"method": "other"},
        "fairness": {
            "groups": ["sex", "group_sex", "race"],
            "reference": "auto",
            "pairs": [
                ["sex", "sex"],
                ["sex", "age"],
                ["age", "group_sex"],
                ["class", "sex"],
                ["sex", "site"],
                ["age", "race"],
            ],
        },
        "representation_law": {"methods": ["tuned", "sgd"]},
    },
    "no cell": {
        "audit": {"methods": ["ceiling"], "epsilons": [1]},
        "sites": {"method": "sgd"},
        "fairness": {"methods": ["ceiling"], "epsilons": [1]},
    },
    "inf for the ceiling alone": {
        "epsilons": [10, 1],
        "audit": {"membership": {}},
        "sites": {},
        "fairness": {"reference": "ours"},
        "representation_law": {},
    },
    "inf with membership": {"audit": {"membership": {}, "epsilons": ["inf"], "methods": ["ours"]}},
    "none private": {
        "epsilons": ["inf"],
        "audit": {},
        "sites": {},
        "fairness": {"methods": ["sgd"]},
    },
    "several labels": {
        **ONLY,
        "long_tail": {},
        "sites": {},
        "representation_law": {},
        "backbones": {"pixels": BACKBONES["pixels"]},
        "methods": {"tuned": TUNED},
        "audit": {},
    },
    "a column called class": {
        "datasets": {
            "chest": CHEST | {"group_columns": ["sex"]},
            "skin": CHEST | {"group_columns": ["class"]},
        },
        "fairness": {"pairs": [["class", "sex"]], "reference": "sgd"},
        "epsilons": [1],
        "methods": {"sgd": SGD},
    },
    "no trainer": {
        "methods": {"auto": {"head": "auto"}, "tuned": TUNED},
        "sites": {},
        "audit": {"membership": {"shadows": 8}},
    },
}


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    monkeypatch.chdir(tmp_path)
    for number in range(50):
        Path(f"{number}.png").touch()
    lines = [f"{n}.png,{n % 2},0,{'FM'[n % 2]},{n % 7},{n % 3},{n % 5}\n" for n in range(50)]
    Path("rows.csv").write_text("image,one,two,sex,age,site,class\n" + "".join(lines))
    return {name: load_study({**FULL, **changes}) for name, changes in STUDIES.items()}


def shorten(paths: Any) -> Any:
    """A list of files as one line."""
    return " ".join(map(str, paths)) if isinstance(paths, list | tuple) else str(paths)


def describe_job(analysis: Any, study: Study, files: StudyFiles) -> dict[str, Any]:
    declared = analysis.measurement
    datasets, backbones = analysis.datasets(study), analysis.backbones(study)
    found: dict[str, Any] = {}
    for place in ({"dataset": d, "backbone": b} for d in datasets[:2] for b in backbones[:2]):
        inputs = {name: need.paths(files, place) for name, need in declared.needs.items()}
        params = {
            name: str(value(study, place) if callable(value) else value)
            for name, value in declared.params.items()
        }
        costs = []
        for mb, rows in ((1.0, 1000), (5000.0, 60_000)):
            size = JobSize(
                inputs=inputs,
                measure_mb=lambda paths, mb=mb: mb * len(list(paths)),  # type: ignore[misc]
                count_rows=lambda rows=rows: (rows, rows // 5),  # type: ignore[misc]
            )
            costs += [*declared.cost(study, place, size)]
        if place["backbone"] != backbones[0]:
            inputs = {}
        needs = {name: shorten(paths)[:1500] for name, paths in inputs.items()}
        found[" ".join(place.values())] = [needs, params, costs]
    return found


def describe(analysis: Any, study: Study, files: StudyFiles) -> dict[str, Any]:
    found: dict[str, Any] = {
        "faults": analysis.list_faults(study),
        "datasets": [analysis.datasets(study), analysis.list_named_datasets(study)],
        "backbones": list(analysis.backbones(study)),
    }
    if analysis.measurement:
        found["files"] = shorten(analysis.list_files(study, "r"))
        found["no files"] = shorten(analysis.list_files(study, "r", "gone"))
        found["jobs"] = describe_job(analysis, study, files)
    for exhibit in analysis.exhibits:
        places = exhibit.shown(study)
        needs = [
            {name: shorten(need.paths(files, place)) for name, need in exhibit.needs.items()}
            for place in places[-1:]
        ]
        params = [
            str(value(study, place))
            for name, value in exhibit.params.items()
            for place in places[:1]
            if name != "published"
        ]
        listed = shorten(exhibit.list_files(study, "r", places[:2]))
        found[exhibit.name] = [len(places), *map(str, places[:12]), *needs, *params, listed]
    if analysis.section:
        found["section"] = {
            name: shorten(need.paths(files, {})) for name, need in analysis.section.needs.items()
        }
    return {name: value for name, value in found.items() if value not in ([], "", [[], []], {})}


def test_what_a_study_asks_for_is_as_stored(studies: dict[str, Study]) -> None:
    made: dict[str, Any] = {}
    for name, study in studies.items():
        files = StudyFiles(study, results="r")
        heard = {each.name: each.list_faults(study) for each in load_analyses()}
        made[name] = {each: faults for each, faults in heard.items() if faults}
        if not made[name]:
            made[name] = {each.name: describe(each, study, files) for each in load_analyses()}
    check_values("asked_of_analyses", made)


def test_cells_and_references_of_a_study_are_as_stored(
    studies: dict[str, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    for name, study in studies.items():
        files = StudyFiles(study, results="r")
        keys = [(method, epsilon) for method in study.methods for epsilon in ("1", "inf")]
        place = {"dataset": "digits", "backbone": "pixels"}
        made[name] = {
            "audited": [" ".join(cell) for cell in audit_cells(study)[::3]],
            "marks": [list_audit_marks(files, dataset)[:4] for dataset in study.datasets],
            "ceilings": _ceiling_audit(files, place),
            "compared": [" ".join(cell) for cell in fairness.fairness_cells(study)[::4]],
            "references": [fairness.reference_of(study, *key) for key in keys],
            "with reference": fairness.list_references(study, place)
            if name not in ("unknown names", "faults")
            else [],
            "networks": representation_law.list_law_networks(study),
            "law marks": representation_law.list_law_marks(files, "digits"),
            "trained at sites": or_error(sites.choose_method, study),
            "budgets": sites.list_budgets(study),
        }

    made["chosen"] = list_single_label(studies["nothing"], ["skin", "digits"])
    unreadable = Mock(side_effect=DataError("gone"))
    monkeypatch.setattr(type(study.datasets["chest"]), "multi_label", unreadable)
    assert not has_several_labels(study, "chest"), "nor is its fault stated here"
    made["method faults"] = [
        sites.method_fault(method_options(each))
        for each in (
            {"head": "newton"},
            {
                "head": "tuned",
                "base": {"head": "prototypes"},
                "search": {"max_row_norm": [1.0, 2.0]},
            },
            *METHODS.values(),
        )
    ]
    check_values("cells_of_analyses", made)


def test_titles_words_and_options_are_as_stored() -> None:
    names = (
        "audit",
        "membership_clip-sgd-eps-1",
        "law_residual_pixels",
        "law_residual_one_hot_pixels",
        "law_fuzziness_a_b",
        "imbalance_net",
        "sites_clip",
        "fairness_gap",
        "fairness_auc",
        "tsne",
        "fairness",
        "law_",
        "law",
    )
    made: dict[str, Any] = {
        analysis.name: [analysis.section.title_figure(name) for name in names]
        for analysis in load_analyses()
        if analysis.section
    }
    section = Section(
        anchor="a",
        title="A",
        template="t",
        make="m",
        needs={"first": many(list)},  # type: ignore[arg-type]
        figures={"law_a_": "{} of a", "law_": "{}"},
    )
    made["records"] = [section.records, section.title_figure("law_a_b")]
    made["at least"] = [
        at_least(v) for v in (-1.0, 0.0, 1e-5, 0.1, 0.57, 0.71299, 1.0, 12.399, 999.9, 12345.0, 0.3)
    ]
    box = {"probability": 0.9}
    made["power"] = [
        power_in_words(each and {**box, "caught_factor": each["factor"]})
        for each in (None, {"factor": None}, {"factor": float("inf")}, {"factor": 1.23456})
    ]
    made["path"] = str(audit_path("a", ("d", "b", "m", "1"), ".json"))
    made["audits"] = {
        str(options): or_error(lambda given: str(AuditOptions(**given)), options)
        for options in (
            {},
            {"runs": 10},
            {"runs": 10, "confidence": 0.999},
            {"runs": 9},
            {"runs": 11, "confidence": 0.9999},
            {"runs": 13, "confidence": 0.9999},
            {"runs": 14, "confidence": 0.9999},
            {"epsilons": [1.0, "inf"]},
        )
    }
    made["membership"] = [
        or_error(lambda given: str(MembershipOptions(**given)), options)
        for options in ({"targets": 8, "shadows": 8}, {"targets": 9, "shadows": 8}, {"targets": 0})
    ]
    tunes: Any = ("head", "all", {"blocks": 1}, {"blocks": 4}, {"lora": {"rank": 8}})
    search = {"space": {"learning_rate": [0.1, 1.0]}}
    made["tuning"] = [
        representation_law.describe_tuning(method_options(options))
        for options in (
            SGD,
            *({"head": "fine_tune", "tune": tune} for tune in tunes),
            {"head": "fine_tune", "tune": {"blocks": 4}, "search": search},
        )
    ]
    check_values("words_of_analyses", made)


def test_a_job_gets_the_arguments_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {
        name: ["in/a", "in/b"]
        for name in ("train", "test", "shards", "metrics", "predictions", "marks")
    }
    made: dict[str, Any] = {}
    for rule in (
        "compare_groups",
        "simulate_sites",
        "measure_long_tail",
        "embed_tsne",
        "classify_zero_shot",
        "probe_few_shot",
    ):
        given: dict[str, Any] = {}
        analysis = find_analysis(rule)
        declared = analysis.measurement
        assert declared

        def job(
            folder: Any,
            dataset: Any,
            threads: Any,
            options: Any,
            study: Any,
            seed: Any,
            record: Any = 0,
            table: Any = 0,
            output: Any = 0,
            rows: Any = 0,
            *,
            got: Any = given,
            **needed: Any,
        ) -> None:
            got |= {
                "folder": folder,
                "dataset": dataset,
                "threads": threads,
                "study": study,
                "seed": seed,
                "outputs": [record, table, output, rows],
                **needed,
                "options": type(options).__name__,
            }

        monkeypatch.setattr("dpprobe.analyses.measuring.find_function", lambda _, job=job: job)
        needs = {name: inputs.get(name, ["in/one"]) for name in declared.needs}
        outputs = [
            f"r/{path.format(dataset='d', backbone='b')}" for path in declared.outputs.values()
        ]
        options: dict[str, Any] = {"counts": [2]} if rule == "simulate_sites" else {}
        measure_analysis(
            analysis,
            inputs=needs,
            outputs=outputs,
            wildcards={"dataset": "d", "backbone": "b"},
            params={"seed": 3, "version": 1, "options": options},
            threads=2,
            read_study=lambda: "the study",  # type: ignore[arg-type, return-value]
        )
        made[rule] = {name: str(value) for name, value in given.items()}
    chosen = {"a": one(lambda *_: None), "b": many(lambda *_: []), "c": waits(lambda *_: [])}
    made["read"] = str(read_needs(chosen, {"a": [], "b": ["x", "y"], "c": ["z"]}))
    given_one: Any = [one(lambda *_: None), one(lambda *_: "p")]
    made["one"] = [each.paths(None, {}) for each in given_one]
    check_values("arguments_of_jobs", made)
