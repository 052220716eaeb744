"""Studies: one module per table, figure or question, run by a command.

``STUDIES`` lists those that a command reproduces: the module's name and what it shows. Each has a
``main(argv)`` and also runs as ``python -m sparsebnn.experiments.<name>``.
"""

__all__ = ["STUDIES"]

STUDIES: dict[str, str] = {
    "table1": "Table 1 of the paper: three data sets, three methods, fully connected networks.",
    "table2": "Table 2 of the paper: the same with convolutional networks.",
    "ablations": "What the paper states without showing: z per observation, tanh, MNF.",
    "densities": "Why these densities: how far the inclusion logits travel.",
    "lbbnn_schedule": "LBBNN's inclusion logits: start and rate chosen on validation rows.",
    "bound": "Trained ELBOs against exact evidence, on problems small enough to enumerate.",
    "lrt_gap": "The local reparametrization against drawn weights: where their laws differ.",
    "auxiliary_gap": "The auxiliary's shortcut by moments against drawn weights.",
}
