"""Studies: one module per table, figure or question, run by a command.

``STUDIES`` lists those that a command reproduces: the module's name and what it shows. Each has a
``main(argv)`` and also runs as ``python -m studies.<name>``.
"""

__all__ = ["STUDIES"]

STUDIES: dict[str, str] = {
    "demo": "The main job on embedded data: LBBNN-FLOW on handwritten digits, saved, pictured and explained.",
    "tables": "Tables 1 and 2 of the paper, its figures beside those in results/.",
    "table1": "Table 1 of the paper: three data sets, three methods, fully connected networks.",
    "table2": "Table 2 of the paper: the same with convolutional networks.",
    "ablations": "What the paper states without showing: z per observation, tanh, MNF.",
    "densities": "Why these densities: how far the inclusion logits travel.",
    "frontier": "Beyond the paper: accuracy, density and calibration under the recommended recipe.",
    "groups": "Sparsity as smaller matrices: inclusions shared by inputs, neurons and filters.",
    "lbbnn_schedule": "LBBNN's inclusion logits: start and rate chosen on validation rows.",
    "bound": "Trained ELBOs against exact evidence, on problems small enough to enumerate.",
    "lrt_gap": "The local reparametrization against drawn weights: where their laws differ.",
    "table3": "Table 3, figures 3 and 4: variable selection by CS, LBBNN-LRT and LBBNN-FLOW.",
    "selection_power": "Table 3 with fresh data: TPR, FPR and power by correlation and sample size.",
    "selection_truth": "Inclusion probabilities of CS, LBBNN-LRT, LBBNN-FLOW and LBBNN against exact ones.",
    "selection_fdr": "Choices by Bayesian FDR: the realized rate against the one asked for.",
    "auxiliary_gap": "The auxiliary's shortcut by moments against drawn weights.",
    "uncertainty": "Predictive uncertainty on five clusters, against the model that generated them.",
    "uncertainty_temperature": "The temperatures of the study of uncertainty, by cross-validation.",
    "uncertainty_starts": "The bound behind the study of uncertainty, climbed from other starts.",
    "image_ood": "Images of another kind: trained on one of MNIST, FMNIST, KMNIST, asked about the others.",
    "across_devices": "A model saved on one device, loaded on another: the same predictions.",
    "column_choice": "Which columns the estimators choose, where it is known which matter.",
    "density_choice": "What the estimators keep when they are asked for a density, and what it costs.",
    "defaults": "The estimators' defaults beside scikit-learn's, on its bundled data sets.",
}
