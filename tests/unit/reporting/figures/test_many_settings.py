"""All that figures show, over many settings, against stored answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from dpprobe.artifacts import hash_value, read_json, write_json
from dpprobe.exhibits.epsilon_axis import EpsilonScale
from dpprobe.exhibits.published import read_published
from dpprobe.features.shard_header import FORMAT_VERSION
from dpprobe.features.shard_manifest import MANIFEST_FORMAT
from dpprobe.planner.accuracy_plan import Scale
from dpprobe.planner.predicted_accuracy import Setting, Start
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.figures import backbones as by_backbone
from dpprobe.reporting.figures import curves, datasets, option_panels, planner, published_points
from dpprobe.reporting.figures.accuracy_loss import (
    find_losses,
    plot_distribution_shift,
    plot_loss_by_backbone,
    relative_error,
)
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.reporting.figures.datasets import datasets_figure, delta_figure, real_labels_figure
from dpprobe.reporting.figures.options import option_figure
from dpprobe.reporting.figures.time_cost import find_front, plot_time_cost, read_extraction_seconds
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_results import CellResult, read_cell_results
from dpprobe.results.summary import read_grid, summarise_cells
from dpprobe.study.comparisons import DATASET_COMPARISONS
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.baseline_records import write_zero_shot
from tests.support.cell_files import BARE, summarise, write_cell, write_study
from tests.support.comparison_cells import compared_cells
from tests.support.figures import describe_figure, varied_cells, write_summary
from tests.support.stored_records import answer_of, check_values

RISK = "tpr-0.05-at-0.01"
LONG = "a_hospital_with_a_very_long_name_of_sixty_characters_or_more"
HEAD = "s\tmax_rss\tcpu_time\n"


def make_study(*more: Any) -> Study:
    return load_study(
        {
            "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
            "backbones": {name: {"family": "pixels"} for name in ("small", "large")},
            "methods": {
                head: {"head": head} for head in ("sgd", "feature_covariance", "nonprivate")
            },
            "epsilons": [0.1, 1, 8, "inf", *more],
            "delta": 1e-4,
            "features": {"shards": 2},
        }
    )


def set_seconds(root: Path, **seconds: float | None) -> None:
    """Writes the time of each method into its cells, longer on the second backbone."""
    for path in root.glob("cells/*/*/*/*/metrics.json"):
        record = read_json(path)
        time = seconds.get(record["cell"]["method"], 1.0)
        twice = 2 if record["cell"]["backbone"] == "large" else 1
        write_json(path, record | {"seconds": None if time is None else twice * time})


def write_benchmarks(root: Path, backbone: str, seconds: float) -> None:
    for name in ("shard-00000-of-00002", "shard-00001-of-00002"):
        path = root / f"benchmarks/extract_features/digits/{backbone}/train/{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEAD}{seconds}\t1\t99\n")


def draw(root: Path, *more: Any) -> Any:
    return plot_time_cost(study=make_study(*more), results=root, dataset="digits")


def write_summaries(root: Path, cells: Sequence[CellResult]) -> list[Path]:
    """Writes the summaries of made-up cells, one a dataset."""
    paths = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        paths.append(root / f"{dataset}.parquet")
        files = sorted(root.glob(f"cells/{dataset}/*/*/*/metrics.json"))
        summarise_cells(files, paths[-1], study="study")
    return paths


def answer(draw: Callable[..., Figure | None], *given: Any, **options: Any) -> Any:
    """Returns what a figure shows, or why there is none."""
    figure = answer_of(draw, *given, **options)
    return describe_figure(figure) if isinstance(figure, Figure) else figure


def _write_unpriced(root: Path) -> Path:
    """Cells whose options a search chose, at a large delta, of one seed and of three."""
    cells = [
        write_cell(root, method=method, epsilon=epsilon, seeds=seeds, patients=20)
        for method, seeds in (("sgd", 1), ("found", 3), ("nonprivate", 3))
        for epsilon in (("1", "8") if method != "nonprivate" else ("inf",))
    ]
    search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
    for path in cells[2:4]:
        write_json(path, read_json(path) | {"head": "fine_tune", "options": {"search": search}})
    for path in cells[:2]:
        write_json(path, read_json(path) | {"n": 200_000})
    return summarise(root / "both.parquet", *cells)


def test_results_against_epsilon_are_drawn_as_stored(tmp_path: Path) -> None:
    published = read_published()
    risks = [
        write_cell(tmp_path / "risks", dataset="cifar10", method=f"m{m}", epsilon=epsilon)
        for m in range(8)
        for epsilon in (RISK, "1", "2")[m % 2 :]
    ]
    for number, path in enumerate(risks[::5]):
        write_json(path, read_json(path) | {"realised_epsilon": 0.7 + number / 2})
    bare = [write_cell(tmp_path / "bare", epsilon=epsilon) for epsilon in ("1", "2", "inf")]
    for path in bare[::2]:
        write_json(path, read_json(path) | {"summary": {"accuracy": BARE}})
    summaries = {
        "several": write_summary(tmp_path / "several", epsilons=("0.5", "8", "inf")),
        "alone": write_summary(tmp_path / "alone", backbones=["b"], methods=["sgd", "nonprivate"]),
        "many": write_summary(
            tmp_path / "many",
            backbones=["b"],
            epsilons=("1",),
            methods=[f"method {index}" for index in range(11)],
        ),
        "infinite": summarise(
            tmp_path / "infinite.parquet",
            *(
                write_cell(tmp_path / "infinite", method=method, epsilon=epsilon)
                for method, epsilon in (("sgd", "1"), ("sgd", "inf"), ("sgd_full", "1"))
            ),
        ),
        "ceiling": write_summary(tmp_path / "ceiling", backbones=["b"], methods=["nonprivate"]),
        "one seed": summarise(tmp_path / "one.parquet", write_cell(tmp_path / "one", seeds=1)),
        "labels": summarise(
            tmp_path / "labels.parquet",
            *write_study(
                tmp_path / "labels",
                methods=["sgd"],
                multi_label=True,
                class_names=("round", "even", "absent"),
            ),
        ),
        "both": _write_unpriced(tmp_path / "both"),
        "risks": summarise(tmp_path / "risks.parquet", *risks),
        "bare": summarise(tmp_path / "bare.parquet", *bare),
    }
    tuned = [write_cell(tmp_path / "net", method=name) for name in ("sgd", "tuned")]
    options = {"head": "fine_tune", "options": {"head": "fine_tune"}}
    write_json(tuned[1], read_json(tuned[1]) | options)
    summaries["network"] = summarise(tmp_path / "network.parquet", *tuned)
    names = {
        "several": "mnist",
        "alone": "imagenet",
        "one seed": "cifar10",
        "network": "cifar10",
        "risks": None,
    }
    answers = {}
    for name, path in summaries.items():
        answers[name] = answer(epsilon_accuracy, path)
        if name in names:
            answers[f"{name}, published"] = answer(
                epsilon_accuracy, path, published=published, name=names[name]
            )
    answers["powers"] = [curves._format_power(value) for value in (1e-5, 8e-7, 1.25e-10, 0.5, 1e12)]
    check_values("figures_of_epsilon", answers)


def test_published_points_are_numbered_and_give_way_as_stored() -> None:
    published = read_published()
    one = published.mark_points("cifar10", "accuracy")[0]
    changes: list[dict[str, Any]] = [
        {"epsilon": 1.0},
        {"epsilon": 2.0},
        {"epsilon": (1.0, 2.0)},
        {"epsilon": (1.0, 2.0)},
        {"epsilon": 4.0, "model": "alone"},
        {"epsilon": 4.0, "inferred": ("epsilon",)},
    ]
    points = [one.model_copy(update={"inferred": (), **change}) for change in changes]
    marks = published_points.number_points(published, points)
    places = [(99.9, 1.0)] * 7 + [(60.0, 1.0), (60.0, 4.0), (10.0, 2.0), (100, 6)]
    crowd = [
        replace(marks[0], number=number, percent=percent, reach=(1.0, high))
        for number, (percent, high) in enumerate(places)
    ]
    scale = EpsilonScale(finite=(1.0, 8.0), infinite=True, curves=2)
    drawn = []
    for each in ([], marks, crowd):
        axes = Figure().add_subplot()
        axes.plot([0, 1], [40, 90])
        published_points.draw_marks(axes, scale, each)
        drawn.append(describe_figure(axes.get_figure()))  # type: ignore[arg-type]
    reverse = published_points.number_points(published, points[::-1])
    other = [(mark.number, mark.circle_epsilon, mark.label) for mark in reverse]
    check_values("figures_of_published_points", {"marks": marks, "reverse": other, "drawn": drawn})


def test_options_are_drawn_as_stored(tmp_path: Path) -> None:
    answers = {}
    varied: dict[str, list[Any]] = {
        "batch_size": [64, 256, "full"],
        "init_scale": [0, 0.01, 1.0],
    }
    for option, values in varied.items():
        cells = varied_cells(tmp_path / option, option, values)
        answers[option] = answer(option_figure, cells, option, dataset="digits")
    with pytest.raises(KeyError, match="learning_rate"):  # a caller's mistake: it has no figure
        option_figure(
            varied_cells(tmp_path / "rate", "learning_rate", [1, 2]),
            "learning_rate",
            dataset="digits",
        )
    base: dict[str, Any] = {"batch_size": 64, "init": "zero", "init_scale": None}
    paths = []
    for number, (head, rate) in enumerate((h, r) for h in ("momentum", "lamb") for r in (3, 1, 2)):
        paths.append(write_cell(tmp_path, method=f"{head}_{rate}", quality=1 + number % 4))
        options = base | {"head": head, "learning_rate": rate}
        write_json(paths[-1], read_json(paths[-1]) | {"head": head, "options": options})
    answers["optimiser"] = answer(
        option_figure, read_cell_results(paths), "optimiser", dataset="digits"
    )
    for path, init in zip(paths, ("lecun_normal", "scaled", "zero") * 2, strict=True):
        record = read_json(path)
        record["options"] |= {"init": init, "learning_rate": 1}
        write_json(path, record)
    answers["lecun"] = answer(
        option_figure, read_cell_results(paths), "init_scale", dataset="digits"
    )
    cells = [
        replace(cell, backbone="b", head="lamb") if n in (1, 2, 4) else cell
        for n, cell in enumerate([*cells, replace(cells[3], mean=0.9)])
    ]
    answers["lacking"] = answer(option_figure, cells, "init_scale", dataset="digits")
    answers["none"] = answer(option_panels.draw_panels, [], title="a", label="b")
    answers["offsets"] = [option_panels.spread_offsets(n, 0.12) for n in (1, 2, 5, 6, 12)]
    answers["budgets"] = [
        option_panels.format_budget(each)
        for each in (1.0, math.inf, 0.25, 1e-7, RiskEpsilon(1.5, RISK, 1e-5))
    ]
    check_values("figures_of_options", answers)


def _timm(size: int | None, **changes: Any) -> dict[str, Any]:
    preprocessing = {"size": size, "crop_pct": None, "crop": "centre"} | changes
    return {"family": "timm", "model": "vit", "preprocessing": preprocessing}


def test_backbones_are_compared_as_stored(tmp_path: Path) -> None:
    published = read_published()
    cells = compared_cells(tmp_path / "a", backbones=["native", "b256", "other"])
    several = compared_cells(
        tmp_path / "b",
        epsilons=("0.1", "0.3", "1", "2", "4", "8", "16", "inf"),
        methods=["sgd"],
        backbones=[LONG],
    )
    backbones = {
        "native": _timm(None),
        "b256": _timm(256, crop_pct=0.667),
        "other": _timm(512, crop="i"),
    }
    sizes = {"native": 384, "b256": 256, "other": 512}
    answers: dict[str, Any] = {
        f"size, {base}": answer(
            by_backbone.resolution_figure,
            cells,
            backbones=backbones,
            sizes=sizes,
            dataset="digits",
            base=base,
        )
        for base in (None, "sgd", "absent")
    }
    more = {f"x{size}": _timm(size, crop="x") for size in (512, 256)}
    cells += [replace(cell, backbone="x512") for cell in cells[:3]]
    answers["no size twice"] = answer(
        by_backbone.resolution_figure,
        cells[::-1],
        backbones=more | backbones,
        sizes=sizes | {"x512": 512},
        dataset="digits",
    )
    del backbones["b256"]
    answers["one size"] = answer(
        by_backbone.resolution_figure, cells, backbones=backbones, sizes=sizes, dataset="digits"
    )
    private = [cell for cell in cells if cell.private]
    some = [c for c in private if (c.backbone, c.epsilon) not in (("b256", 8), ("other", 1))]
    for name, chosen in {"": cells, "many": several, "some": some + cells[-6:]}.items():
        answers[f"gaps, {name}"] = answer(by_backbone.backbone_figure, chosen, dataset="digits")
    for name in ("imagenet", "cifar100"):
        answers[name] = answer(
            by_backbone.backbone_figure, private, dataset="digits", published=published, name=name
        )
    network = [replace(cell, network=cell is private[1]) for cell in private]
    answers["own name"] = answer(
        by_backbone.backbone_figure, network, dataset="imagenet", published=published
    )
    answers["tuned"] = by_backbone._published_models(
        published, "imagenet", "accuracy", networks=True
    )
    answers["spread"] = [
        by_backbone.spread_values([float(value) for value in range(n)], count)
        for n, count in ((0, 2), (3, 3), (4, 3), (15, 5), (7, 2))
    ]
    answers["sides"] = [
        by_backbone.image_side({"preprocessing": each})
        for each in ({"input_size": [3, 192, 224]}, {"size": [192, 224]}, {"size": 224})
    ]
    names = {"small": _timm(32), "large": _timm(64)}
    manifests = [tmp_path / f"features/digits/{name}/train/manifest.json" for name in names]
    for path, side in zip(manifests, (32, 64), strict=True):
        body = {
            "format": MANIFEST_FORMAT,
            "format_version": FORMAT_VERSION,
            "preprocessing": {"input_size": [3, 8, side]},
        }
        write_json(path, body | {"manifest_sha256": hash_value(body)})
    compared_cells(tmp_path / "c", real=0.05)
    for figure in DATASET_COMPARISONS:
        answers[figure] = answer(
            datasets.plot_comparison,
            manifests=manifests,
            study=make_study(),
            figure=figure,
            published=published,
            dataset="digits",
            results=tmp_path / "c",
            name="imagenet",
            backbones=names,
            base="sgd",
        )
    check_values("figures_of_backbones", answers)


def _chosen_by_auto(cells: list[CellResult]) -> list[CellResult]:
    heads = {0.1: "prototypes", 1.0: "feature_covariance", 8.0: "feature_covariance"}
    return [
        replace(cell, options={"head": "auto", "chosen": {"head": heads[cell.epsilon]}})
        if cell.private
        else cell
        for cell in cells
    ]


def test_datasets_are_compared_as_stored(tmp_path: Path) -> None:
    deltas = {"a": {"delta": 1e-6}, LONG: {"delta": 8e-7}}
    real = compared_cells(tmp_path / "real", backbones=["b"], real=0.05)
    both = compared_cells(tmp_path / "both", datasets=tuple(deltas), changes=deltas)
    best = compared_cells(tmp_path / "best", datasets=("a", "b"), methods=["m", "n"])
    auto = _chosen_by_auto(compared_cells(tmp_path / "auto", methods=["auto"]))
    part = [cell for cell in both if (cell.dataset, cell.method) != ("a", "feature_covariance")]
    private = [cell for cell in both if cell.private]
    answers = {
        "both": answer(datasets_figure, both),
        "best": answer(datasets_figure, best[::-1]),
        "auto": answer(datasets_figure, auto),
        "part": answer(datasets_figure, part),
        "a point": answer(
            datasets_figure,
            [c for c in both if c.dataset == "a" or c.epsilon > 8]
            + [c for c in both[::-1] if (c.dataset, c.epsilon) == (LONG, 1.0)],
        ),
        "some": answer(
            datasets_figure,
            [
                c
                for c in both
                if (c.dataset, c.ceiling) != ("a", True)
                and (c.dataset, c.backbone, c.private) != (LONG, "large", True)
            ],
        ),
        "deltas": answer(delta_figure, [["a", LONG]], private),
        "read": [
            answer(
                datasets.plot_datasets,
                figure=each,
                groups=[["a", LONG]],
                metrics=sorted(tmp_path.glob("both/**/metrics.json")),
            )
            for each in ("deltas", "datasets")
        ],
        "groups": answer(delta_figure, [["a"], [LONG]], both),
        "real": answer(
            real_labels_figure,
            [*real, *(replace(c, real=None, mean=0.99) for c in real)],
            dataset=LONG,
        ),
    }
    check_values("figures_of_datasets", answers)


def test_a_loss_is_the_ceiling_of_the_backbone_minus_its_best_private_head(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, epsilons=("1", "inf"), backbones=("small", "large"))
    grid = read_grid(write_summaries(tmp_path, cells))
    losses = {loss.backbone: loss for loss in find_losses(grid)}
    assert set(losses) == {"small", "large"}
    for backbone, loss in losses.items():
        here = [cell for cell in cells if cell.backbone == backbone]
        best = max(100 * cell.mean for cell in here if cell.private)
        (ceiling,) = (100 * cell.mean for cell in here if cell.ceiling)
        assert loss.ceiling.mean == pytest.approx(ceiling)
        # choosing the best of two heads flatters it: the loss is no less than the plain gap
        assert loss.points >= ceiling - best - 1e-9
        assert loss.low is not None
        assert loss.high is not None
        assert loss.low < loss.points < loss.high
    (whole,) = best_private(grid, {})
    assert losses[whole.backbone].points == pytest.approx(whole.gap, abs=2.0)


def test_losses_to_privacy_are_drawn_as_stored(tmp_path: Path) -> None:
    names, epsilons = ("small", "medium", "large"), ("0.1", "8", "inf")
    (one,) = write_summaries(
        tmp_path / "1", compared_cells(tmp_path / "1", backbones=names, epsilons=epsilons)
    )
    cells = compared_cells(
        tmp_path / "2", datasets=("near", "far", "old"), epsilons=("1", "8", "inf")
    )
    for path in (tmp_path / "2").glob("cells/old/*/*/*/metrics.json"):
        write_json(path, read_json(path) | {"constant_accuracy": 1.0})
    summaries = write_summaries(tmp_path / "2", cells)
    # the metric of one is not that of its cells
    zero = [
        write_zero_shot(tmp_path, dataset=name, backbone="large", **{metric: value})
        for name, metric, value in (
            ("near", "accuracy", 0.8),
            ("far", "auc", 0.8),
            ("old", "accuracy", 1.0),
        )
    ]
    files = [
        path
        for path in (tmp_path / "1").glob("cells/**/metrics.json")
        if "small/nonprivate" not in str(path)
    ]
    part = summarise(tmp_path / "part.parquet", *files)
    files = [
        path
        for path in (tmp_path / "2").glob("cells/far/**/metrics.json")
        if "/eps-1/" not in str(path)
    ]
    eight = [summarise(tmp_path / "eight.parquet", *files), summaries[0]]
    answers = {
        "backbones": answer(plot_loss_by_backbone, summary=one, dataset="digits"),
        "part": answer(plot_loss_by_backbone, summary=part, dataset="digits"),
        "shift": answer(plot_distribution_shift, summaries=summaries, zero_shot=zero),
        "no text": answer(plot_distribution_shift, summaries=summaries, zero_shot=[]),
        "two": answer(plot_distribution_shift, summaries=summaries[:2], zero_shot=zero),
        "one": answer(plot_distribution_shift, summaries=summaries[::2], zero_shot=[]),
        "first at 8": answer(plot_distribution_shift, summaries=eight, zero_shot=[]),
        "errors": [
            relative_error(a, b) for a, b in ((100, 10), (10, 10), (75, 50), (90, None), (100, 100))
        ],
    }
    check_values("figures_of_losses", answers)


def test_plans_are_drawn_as_stored(tmp_path: Path) -> None:
    scale = Scale(chance=0.25, majority=0.4, ceilings=(0.82,), given=True)
    public = Scale(chance=0.1, majority=0.1, ceilings=(0.7, 0.8, 0.9), given=False)
    setting = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)
    starts = {
        epsilon: Start.of_measured(setting.with_epsilon(epsilon), scale.share_of(accuracy))
        for epsilon, accuracy in ((0.5, 0.65), (1.0, 0.75), (2.0, 0.8))
    }
    none = dict.fromkeys((0.5, 1.0))
    risk = RiskEpsilon(0.46, RISK, 1e-5)
    few = Setting(n=40, classes=10, epsilon=0.5)
    answers = {
        "measured": answer(planner._plan_figure, setting, scale, starts, title="d", unit="image"),
        "expected": answer(planner._plan_figure, setting, public, none, title="", unit="image"),
        "part": answer(
            planner._plan_figure,
            setting.with_epsilon(risk),
            scale,
            none | {1.0: starts[1.0], risk: None},
            title="",
            unit="patient",
        ),
        "few": answer(planner._plan_figure, few, public, none, title="few", unit="patient"),
        "other": answer(planner.write_plan_figure, Path("plan.pdf"), setting, scale, unit="image"),
    }
    check_values("figures_of_plans", answers, rel=1e-4)
    for name, start in (("plan.svg", b"<?xml"), ("plan.png", b"\x89PNG")):
        planner.write_plan_figure(tmp_path / name, setting, scale, unit="image")
        assert (tmp_path / name).read_bytes().startswith(start)
    svg = planner.plan_svg(setting, scale, list(filter(None, starts.values())), title="a", unit="a")
    assert b"<svg" in svg


def test_results_against_seconds_are_drawn_as_stored(tmp_path: Path) -> None:
    compared_cells(tmp_path)
    set_seconds(tmp_path, sgd=6.0, feature_covariance=0.3)
    answers = {"training": answer(draw, tmp_path)}
    write_benchmarks(tmp_path, "small", 10.0)
    answers["one backbone"] = read_extraction_seconds(make_study(), tmp_path, "digits")
    write_benchmarks(tmp_path, "large", 50.0)
    set_seconds(tmp_path, sgd=0.0001, feature_covariance=0.3)
    answers["extraction"] = answer(draw, tmp_path)
    set_seconds(tmp_path, sgd=None)
    answers["without"] = answer(draw, tmp_path)
    set_seconds(tmp_path, sgd=None, feature_covariance=None)
    answers["none"] = answer(draw, tmp_path)
    compared_cells(tmp_path, epsilons=("0.1", "1", "8", "inf", RISK))
    set_seconds(tmp_path, sgd=3.0)
    for place in ("large/sgd/*", "large/feature_covariance/eps-0.1", "small/sgd/eps-0.1"):
        for path in tmp_path.glob(f"cells/digits/{place}/metrics.json"):
            write_json(path, read_json(path) | {"head": "fine_tune"})
    answers["risk"] = answer(draw, tmp_path, {"true_positives": 0.05, "at": 0.01})
    next(tmp_path.glob("benchmarks/*/*/small/*/*.tsv")).unlink()
    answers["one shard"] = read_extraction_seconds(make_study(), tmp_path, "digits")
    (cell, *_) = compared_cells(tmp_path / "front", epsilons=("1",))
    means = {1.0: 0.5, 2.0: 0.4, 3.0: 0.7, 4.0: 0.7, 5.0: 0.9}
    points = [(seconds, replace(cell, mean=mean)) for seconds, mean in means.items()]
    front = find_front([*points[::-1], (1.0, replace(cell, mean=0.3))])
    assert [(seconds, c.mean) for seconds, c in front] == [(1.0, 0.5), (3.0, 0.7), (5.0, 0.9)]
    check_values("figures_of_seconds", answers)
