"""Reports: one HTML page and its figures from results directories."""
