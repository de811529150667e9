"""Tables of representation laws: order of rows, values from the record, and published results."""

from __future__ import annotations

from pathlib import Path

from dpprobe.analyses.representation_law import law_tables
from dpprobe.analyses.representation_law.law_record import law_path
from dpprobe.exhibits.published import read_published
from dpprobe.files.json_files import read_json, write_json
from tests.support.cell_files import grid_of, write_cell
from tests.support.law_records import law_record, network, tuned_networks
from tests.support.shown import rows_of


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
