"""Tables of representation laws: rows in order, cells of the record, published results beside."""

from __future__ import annotations

from pathlib import Path

from dpprobe.analyses.representation_law import law_tables
from dpprobe.analyses.representation_law.law_record import law_path
from dpprobe.exhibits.published import read_published
from dpprobe.files.json_files import read_json, write_json
from tests.support.cell_files import grid_of, write_cell
from tests.support.law_records import law_record, network, tuned_networks
from tests.support.shown import rows_of


def test_networks_are_sorted_by_setting_epsilon_and_tuned_blocks() -> None:
    networks = [
        network("lora", "10", "searched", "lora 8", None),
        network("nine", "10", "constant", "last 9 blocks", 9),
        network("b", "2", "constant", "head", 0),
        network("a", "2", "constant", "head", 0),
        network("full", "inf", "searched", "all", None),
        network("two", "10", "constant", "last 2 blocks", 2),
        network("late", "10", "constant", "all", None),
        network(),
    ]
    record = law_record(*networks)
    found = [each.method for each in law_tables.sort_networks(record.networks)]
    assert found == [None, "a", "b", "two", "nine", "late", "lora", "full"]
    rows = rows_of(law_tables.law_table([record], dataset="digits"))
    assert [row["method"] for row in rows[::2]] == ["", *found[1:]]
    assert [row["rows"] for row in rows] == ["training", "test"] * 8
    assert [row["ε"] for row in rows[::2]] == ["", "2", "2", "10", "10", "10", "10", "∞"]
    assert rows[0]["options"] == "frozen"
    assert (rows[2]["options"], rows[2]["tuned"]) == ("constant", "head")
    assert (rows[-1]["options"], rows[-1]["tuned"]) == ("tuned, unpriced", "all")


def test_a_law_has_its_interval_its_fit_and_the_law_of_shuffled_labels() -> None:
    frozen = network(rho=0.8)
    frozen["series"][0] |= {"law": None, "null": None, "fault": "2 layers; a law needs 3"}
    train, test = rows_of(law_tables.law_table([law_record(frozen)], dataset="digits"))
    assert test["ρ fuzziness"] == "0.800 ± 0.016"
    assert (test["R² fuzziness"], test["ρ shuffled fuzziness"]) == ("0.99", "1.000")
    assert test["ρ separability"] == "1.250 ± 0.025"
    assert [train[f"{kind}fuzziness"] for kind in ("ρ ", "R² ", "ρ shuffled ")] == [""] * 3
    assert {"ρ residual", "ρ one-hot residual"} < set(test)
    assert test["layers left out"] == train["layers left out"] == ""


def test_layers_left_out_are_listed_by_split_and_told_with_their_reason() -> None:
    frozen = network(first=False)  # layer 0 of training, and layer 1 of test rows
    left = [
        {"layer": place, "split": split, "measures": ["residual"], "reason": "rounding"}
        for split, place in (("test", 10), ("test", 2), ("test", 2), ("train", 3))
    ]
    frozen["left_out"] += left
    record = law_record(frozen)
    train, test = rows_of(law_tables.law_table([record], dataset="digits"))
    assert (train["layers left out"], test["layers left out"]) == ("0, 3", "1, 2, 10")
    (note,) = law_tables.left_out_notes([record, law_record()])
    every = "fuzziness, separability, residual, one-hot residual"
    assert note == (
        f"Left out, pixels: {every} on training rows, layers 0: 0/0; {every} on test rows, layers "
        "1: 0/0; residual on test rows, layers 2, 10: rounding; residual on training rows, layers "
        "3: rounding."
    )


def _cells(folder: Path, *, backbone: str = "pixels") -> list[Path]:
    paths = [
        write_cell(folder, backbone=backbone, method=method, epsilon=epsilon)
        for method, epsilon in (
            ("constant_0", "1"),
            ("searched_2", "8"),
            ("sgd", "10"),
            ("nonprivate", "inf"),
            ("searched_9", "8"),
            ("network_9", "1"),
        )
    ]
    search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
    for path, options in ((paths[4], {"search": search}), (paths[5], {})):
        write_json(path, read_json(path) | {"head": "fine_tune", "options": options})
    return paths


def test_accuracy_has_networks_with_laws_first_and_then_the_other_methods(tmp_path: Path) -> None:
    cells = [*_cells(tmp_path), write_cell(tmp_path, dataset="other", method="o", epsilon="77")]
    table = law_tables.accuracy_by_blocks(
        [law_record()], grid_of(tmp_path, *cells), dataset="digits"
    )
    rows = {row["method"]: row for row in rows_of(table)}
    assert len(rows) == len(table.rows)
    networks = [f"{setting}_{k}" for setting in ("constant", "searched") for k in range(3)]
    assert [*rows][:6] == networks, "once, though they were trained at two budgets"
    assert sorted([*rows][6:]) == ["network_9", "nonprivate", "searched_9", "sgd"]
    words = {name: (row["options"], row["tuned"]) for name, row in rows.items()}
    assert words["constant_1"] == ("constant", "last 1 block")
    assert words["searched_2"] == ("tuned, unpriced", "last 2 blocks")
    assert words["sgd"] == words["nonprivate"] == ("linear head", "stored features")
    assert words["searched_9"] == ("tuned, unpriced", "laws not measured")
    assert words["network_9"] == ("network", "laws not measured")
    columns = [name for name in rows["sgd"] if name.startswith("ε")]
    assert columns == ["ε = 1", "ε = 8", "ε = 10", "ε = ∞"], "those of this dataset alone"
    shown = {name: [c for c in columns if row[c]] for name, row in rows.items()}
    assert shown["constant_0"] == shown["network_9"] == ["ε = 1"]
    assert shown["nonprivate"] == ["ε = ∞"]
    assert shown["constant_1"] == []
    record = read_json(cells[2])["summary"]["accuracy"]
    assert rows["sgd"]["ε = 10"].startswith(f"{100 * record['mean']:.1f} ")
    assert "accuracy on test rows" in table.notes[0]
    assert len(table.notes) == 1, "nothing was published on it"


def test_published_results_have_as_many_training_rows_and_stand_first(tmp_path: Path) -> None:
    published = read_published()
    record = law_record()
    large = law_record(network(), train_rows=50_000)
    numbers = law_tables.published_laws(published, "cifar10", [record])
    assert numbers
    assert {(n.dataset, n.tuning, n.metric, n.train_rows) for n in numbers} == {
        ("cifar10", "blocks", "accuracy", 1000)
    }
    assert law_tables.published_laws(published, "cifar10", [large]) == []
    assert law_tables.published_laws(published, "digits", [record]) == []
    epsilons = sorted({n.single_epsilon for n in numbers if n.single_epsilon} | {77.0})
    rows = law_tables._published_rows(numbers, epsilons)
    keys = list(dict.fromkeys((n.blocks, n.learning_rate) for n in numbers))
    assert len(rows) == len(keys)
    for (blocks, rate), row in zip(keys, rows, strict=True):
        same = [n for n in numbers if (n.blocks, n.learning_rate) == (blocks, rate)]
        _, published_word, options, tuned, *cells = [cell.text for cell in row]
        assert published_word == "published"
        assert options == ("constant" if rate == "constant" else "tuned, unpriced")
        count = f"{blocks[0]} to {blocks[1]}" if isinstance(blocks, tuple) else f"{blocks}"
        assert tuned == f"{count} blocks"
        for epsilon, text in zip(epsilons, cells, strict=True):
            values = [n.value for n in same if n.single_epsilon == epsilon]
            ends = dict.fromkeys(f"{v:g}" for v in (min(values), max(values))) if values else ()
            assert text == " to ".join(ends), f"{tuned} at {epsilon}"
    grid = grid_of(tmp_path, *_cells(tmp_path))
    table = law_tables.accuracy_by_blocks([record], grid, dataset="digits", published=numbers)
    assert [row["method"] for row in rows_of(table)][: len(rows)] == ["published"] * len(rows)
    assert table.notes[1:] == [law_tables.PUBLISHED]


def test_tables_are_made_of_one_dataset_s_records(tmp_path: Path) -> None:
    records = [
        law_record(),
        law_record(*tuned_networks()[:1], network(), backbone="clip"),
        law_record(network(), dataset="other"),
    ]
    paths = [law_path(tmp_path, record.dataset, record.backbone) for record in records]
    for path, record in zip(paths, records, strict=True):
        record.write(path)
    grid_of(tmp_path, *_cells(tmp_path))
    laws, accuracy = law_tables.make_law_tables(
        records=paths,
        summary=tmp_path / "summary.parquet",
        published=read_published(),
        name="digits",
        dataset="digits",
    )
    shown = [row["method"] for row in rows_of(accuracy) if row["backbone"] == "clip"]
    assert shown == ["constant_0"], "heads on the features of pixels are not clip's"
    backbones = [row["backbone"] for row in rows_of(laws)]
    assert backbones == ["clip"] * 4 + ["pixels"] * 26, "two and thirteen networks, by split"
    assert {row["backbone"] for row in rows_of(accuracy)} == {"clip", "pixels"}
    assert (laws.name, accuracy.name) == ("digits_representation_law", "digits_accuracy_by_blocks")
    assert "Not private" in laws.notes[0]
    assert "Tr[SS_b SS_w^+]" in laws.notes[0]
