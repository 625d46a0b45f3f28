"""One module per serving engine: how it spells things, and nothing else."""
