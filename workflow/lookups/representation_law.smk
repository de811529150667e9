"""Input functions and constants of representation_law.smk."""

LAW_DATASETS, LAW_BACKBONES = law_datasets(STUDY), law_backbones(STUDY)
LAW_NETWORKS = [list(network) for network in list_law_networks(STUDY)]


def law_cells(wildcards):
    """The cells of a (dataset, backbone) whose first seed's networks are measured."""
    return [
        Cell(wildcards.dataset, wildcards.backbone, *network)
        for network in LAW_NETWORKS
    ]


def law_networks_paths(wildcards):
    """The files of the measured tuned networks of a (dataset, backbone)."""
    return [
        str(network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0) / name)
        for cell in law_cells(wildcards)
        for name in NETWORK_FILES
    ]


def law_networks_marks(wildcards):
    """The marks of the jobs that train the measured networks."""
    folders = [
        network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0)
        for cell in law_cells(wildcards)
    ]
    return [f"{folder.parent}/.{folder.name}.done" for folder in folders]


def law_outputs(dataset):
    made = exhibit_paths(dataset, names=("write_law_tables", "plot_law"))
    return [*list_law_records(FILES, dataset), *list_law_marks(FILES, dataset), *made]
