"""Studies: the paper's tables and figures, and the questions they raised; run by ``python -m studies NAME``.

Not part of the installed package. A study is a function ``main(argv)`` that writes ``results/`` and, where it
has a page, ``docs/studies/``.
"""

__all__ = ["STUDIES"]

# Name: the module with its ``main`` (or ``module:function``), and what it shows.
STUDIES: dict[str, tuple[str, str]] = {
    "demo": ("demo.command", "LBBNN-FLOW on handwritten digits: trained, saved, drawn, explained."),
    "tables": ("tables.report", "Tables 1 and 2 from results/, next to the paper's figures."),
    "table1": ("tables.command:table1", "Table 1 of the paper: fully connected networks."),
    "table2": ("tables.command:table2", "Table 2 of the paper: convolutional networks."),
    "ablations": ("tables.ablations", "z per observation, tanh, MNF: stated in the paper without figures."),
    "densities": ("tables.densities", "Why these densities: how far the inclusion logits travel."),
    "lbbnn_schedule": ("tables.lbbnn_schedule", "LBBNN's inclusion logits: start and rate."),
    "frontier": ("frontier.command", "Accuracy, density and calibration with the recommended recipe."),
    "groups": ("frontier.groups", "Sparsity as smaller matrices: inclusions shared by inputs and neurons."),
    "bound": ("bounds.bound", "Trained ELBOs against exact evidence."),
    "lrt_gap": ("bounds.lrt_gap", "The local reparametrization against drawn weights."),
    "auxiliary_gap": ("bounds.auxiliary_gap", "The auxiliary distribution: moments against drawn weights."),
    "table3": ("selection.table3", "Table 3, figures 3 and 4: variable selection on one data set."),
    "selection_power": ("selection.power", "TPR, FPR and power by correlation and sample size."),
    "selection_truth": ("selection.truth", "Inclusion probabilities against exact ones."),
    "selection_fdr": ("selection.fdr", "Realized false discovery rates of Bayesian FDR control."),
    "error_rates": ("selection.error_rates", "False discovery rates with correlation and wrong priors."),
    "mixture": ("selection.mixtures", "Structure sampling and mixtures against exact probabilities."),
    "input_skip": ("selection.input_skip", "Small input-skip networks and their active weights."),
    "few_weights": ("few_weights", "MNIST with a few hundred weights, next to published networks."),
    "column_selection": ("selection.column_selection", "Columns of default fits, next to Boruta, LassoNet."),
    "nonlinear": ("selection.nonlinear", "Interactions of correlated inputs, next to Boruta, LassoNet."),
    "finemapping": ("selection.finemapping", "Credible sets on real genotypes, next to susieR."),
    "finemapping_cost": (
        "selection.finemapping_cost",
        "Seconds by rows, columns and effects, next to susieR.",
    ),
    "uncertainty": ("uncertainty.command", "Predictive uncertainty on five clusters."),
    "uncertainty_settings": ("uncertainty.settings", "Rates and slab widths of the uncertainty study."),
    "uncertainty_temperature": ("uncertainty.temperature", "Its temperatures, by cross-validation."),
    "uncertainty_starts": ("uncertainty.starts", "Its bound, reached from other starting points."),
    "image_ood": ("image_ood.command", "Out-of-distribution detection: MNIST, FMNIST, KMNIST."),
    "cifar": ("cifar.command", "Sparse Bayesian ResNets on a JPEG copy of CIFAR-10, next to pruning."),
    "across_devices": ("estimators.across_devices", "A model saved on one device, loaded on another."),
    "column_choice": ("estimators.column_choice", "Which columns the estimators keep, with known truth."),
    "density_choice": ("estimators.density_choice", "The estimators' target_density and what it costs."),
    "survival": ("peers.survival", "Survival analysis next to scikit-survival's methods."),
    "features": ("peers.features", "Feature selection at k = 50, next to LassoNet."),
    "tabular": ("peers.tabular", "Real tables, next to linear models, boosting, CatBoost and others."),
    "uci": ("peers.uci", "UCI regression on fixed splits: RMSE, log-likelihood, coverage."),
    "previous": ("estimators.previous", "The estimators' defaults next to previous ones, fit by fit."),
    "defaults": ("estimators.defaults", "The estimators' defaults against scikit-learn's."),
}
