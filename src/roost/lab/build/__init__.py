"""Everything the lab serves, built once and kept in its cache."""
