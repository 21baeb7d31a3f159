"""Work at set times."""
