"""Linear algebra on plain arrays, which reports failures as values; compiled loops are here too."""
