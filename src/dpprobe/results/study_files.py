"""The paths of a study's files, by stage, for Snakemake rules and exhibits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dpprobe.backbones import joined
from dpprobe.results.cell_files import CELL_FILES
from dpprobe.results.cell_record import CellName
from dpprobe.results.network_record import NETWORK_FILES, NETWORKS_FOLDER, network_folder
from dpprobe.results.search_record import SEARCHES, search_path
from dpprobe.study.cuts import study_cuts
from dpprobe.study.network_methods import searched_methods
from dpprobe.study.reserved_names import locate_features
from dpprobe.study.study import Cell, Study

SPLITS = ("train", "test")


@dataclass(frozen=True)
class StudyFiles:
    study: Study
    data: str = "<data>"  # the folder of split tables
    results: str = "<results>"
    # The files of a cell that rules list. On a disk, rules list only the record for all files in
    # its folder, which makes plans of thousands of cells twice as fast. With a storage provider
    # rules list all files, because only listed files are transferred.
    cell_files: tuple[str, ...] = CELL_FILES
    _cells: dict[tuple[str, ...], list[Cell]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def list_study_cells(self, *datasets: str) -> list[Cell]:
        """Lists the cells of some datasets, by default of all; caches each list."""
        if datasets not in self._cells:
            self._cells[datasets] = self.study.list_cells(*datasets)
        return self._cells[datasets]

    def list_tables(self, dataset: str) -> list[str]:
        """Lists the split tables of a dataset, and the file that describes the dataset."""
        names = ("train.parquet", "test.parquet", "dataset.json")
        return [f"{self.data}/{dataset}/{name}" for name in names]

    def list_shard_names(self) -> list[str]:
        shards = self.study.features.shards
        return [f"shard-{index:05d}-of-{shards:05d}.h5" for index in range(shards)]

    def list_shards(self, dataset: str, backbone: str, *splits: str) -> list[str]:
        """Lists the shards with features of some splits; by default of train and test.

        The features of a joined backbone are in the shards of its members.
        """
        return [
            f"{self.results}/features/{dataset}/{member}/{split}/{name}"
            for member in self.list_members(backbone) or [backbone]
            for split in splits or SPLITS
            for name in self.list_shard_names()
        ]

    def list_members(self, backbone: str) -> list[str]:
        """Lists the members of a joined backbone; empty for other backbones."""
        options = self.study.backbones.get(backbone)
        return list(options.of) if isinstance(options, joined.Options) else []

    def locate_manifest(self, dataset: str, backbone: str, split: str) -> str:
        return locate_features(self.results, dataset, backbone, split)

    def list_features(self, dataset: str) -> list[str]:
        paths = [
            path
            for backbone in self.study.backbones
            for split in SPLITS
            for path in (
                *self.list_shards(dataset, backbone, split),
                self.locate_manifest(dataset, backbone, split),
            )
        ]
        return list(dict.fromkeys(paths))

    def list_texts(self, dataset: str) -> list[str]:
        return [
            f"{self.results}/features/{dataset}/{backbone}/text.safetensors"
            for backbone in self.study.text_backbones()
        ]

    def list_overlap_splits(self, dataset: str) -> list[tuple[str, str]]:
        """Lists the splits to check for near-duplicates: private splits, then public splits."""
        public = self.study.overlap.public if self.study.overlap else ()
        return [(name, split) for name in (dataset, *public) for split in SPLITS]

    def list_overlaps(self, dataset: str) -> list[str]:
        return [
            f"{self.results}/overlap/{dataset}/{backbone}.{ending}"
            for backbone in (self.study.backbones if self.study.overlap else ())
            for ending in ("json", "parquet")
        ]

    def list_calibrations(self, dataset: str) -> list[str]:
        return [
            f"{self.results}/calibration/{dataset}/eps-{epsilon}.json"
            for epsilon in self.study.job_epsilons()
        ]

    def list_cuts(self, *datasets: str) -> list[str]:
        """Lists the shards and manifests of stored intermediate features (cuts) of datasets."""
        return [
            f"{self.results}/cuts/{cut.dataset}/{cut.backbone}/blocks-{cut.blocks}/{split}/{name}"
            for cut in study_cuts(self.study, *datasets)
            for split in SPLITS
            for name in (*self.list_shard_names(), "manifest.json")
        ]

    def list_searches(self, cells: Iterable[Cell]) -> list[str]:
        """Lists the records of the searches that chose options for the networks of `cells`."""
        return [
            str(search_path(f"{self.results}/{SEARCHES}", CellName(**cell._asdict())))
            for cell in cells
            if cell.method in searched_methods(self.study)
        ]

    def list_networks(
        self, cells: Iterable[Cell], names: Sequence[str] = NETWORK_FILES
    ) -> list[str]:
        return [
            str(network_folder(f"{self.results}/{NETWORKS_FOLDER}", cell, index) / name)
            for cell in cells
            if self.study.methods[cell.method].tunes_network
            for index in range(self.study.seeds)
            for name in names
        ]

    def list_cells(self, cells: Iterable[Cell], names: Sequence[str] = CELL_FILES) -> list[str]:
        """Lists the files `names` of cells, without files that no rule lists."""
        names = [name for name in names if name in self.cell_files]
        return [
            f"{self.results}/cells/{cell.dataset}/{cell.backbone}/{cell.method}"
            f"/eps-{cell.epsilon}/{name}"
            for cell in cells
            for name in names
        ]

    def list_zero_shot(self, dataset: str) -> list[str]:
        return [
            f"{self.results}/zero_shot/{dataset}/{backbone}/{name}"
            for backbone in self.study.text_backbones()
            for name in ("metrics.json", "predictions.parquet")
        ]

    def list_zero_shot_records(self, *datasets: str) -> list[str]:
        return [
            path
            for dataset in datasets or self.study.datasets
            for path in self.list_zero_shot(dataset)
            if path.endswith(".json")
        ]

    def list_few_shot_records(self, *datasets: str) -> list[str]:
        return [
            f"{self.results}/few_shot/{dataset}/{backbone}.json"
            for dataset in datasets or self.study.datasets
            for backbone in self.study.few_shot_backbones()
        ]

    def locate_embedding(self, dataset: str, backbone: str) -> str:
        return f"{self.results}/embeddings/{dataset}/{backbone}/tsne.parquet"

    def list_embeddings(self, dataset: str) -> list[str]:
        return [self.locate_embedding(dataset, backbone) for backbone in self.study.backbones]

    def locate_summary(self, dataset: str) -> str:
        return f"{self.results}/summary/{dataset}.parquet"

    def list_summaries(self) -> list[str]:
        return [self.locate_summary(dataset) for dataset in self.study.datasets]
