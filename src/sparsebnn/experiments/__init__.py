"""Studies: one module per table, figure or question, run by a command.

``STUDIES`` lists those that a command reproduces: the module's name and what it shows. Each has a
``main(argv)`` and also runs as ``python -m sparsebnn.experiments.<name>``.
"""

__all__ = ["STUDIES"]

STUDIES: dict[str, str] = {
    "bound": "Trained ELBOs against exact evidence, on problems small enough to enumerate.",
    "lrt_gap": "The local reparametrization against drawn weights: where their laws differ.",
    "auxiliary_gap": "The auxiliary's shortcut by moments against drawn weights.",
    "uncertainty": "Predictive uncertainty on five clusters, against the model that generated them.",
    "image_ood": "Images of another kind: trained on one of MNIST, FMNIST, KMNIST, asked about the others.",
}
