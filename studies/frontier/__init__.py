"""Beyond the paper: accuracy, density and calibration under the recommended recipe.

``plan`` lists what is tried, ``choose`` tries it on validation rows, ``command`` trains the final cells,
``curve`` the target densities and ``pruned`` the network to beat. ``stored`` reads the results; ``report``
and ``picture`` render them.
"""
