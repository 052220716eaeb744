"""The scikit-learn estimators: defaults, columns in use, densities, models moved between devices."""
