"""Files: trained networks, data sets, locks and provenance. Every file is written whole or not at all."""
