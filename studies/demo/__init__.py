"""The demonstration that ``make run`` starts."""
