"""A name or a file to arrays."""
