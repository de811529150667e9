"""Input functions and constants of imbalance.smk."""

IMBALANCED = list_imbalanced(STUDY)


def imbalance_outputs(dataset):
    made = exhibit_paths(dataset, names=("write_imbalance_tables", "plot_imbalance"))
    return [*list_imbalance_records(FILES, dataset), *made]


def with_rare(dataset):
    """A dataset, and its copies in which one class is rare."""
    return [dataset, *(rare.name for rare in rare_classes(STUDY.imbalance, dataset))]


def rare_cells(dataset, backbone):
    """The cells of a dataset and its copies on one backbone."""
    return [
        cell
        for cell in STUDY.list_cells(*with_rare(dataset))
        if cell.backbone == backbone
    ]
