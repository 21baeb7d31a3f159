"""Named sets of tools: the catalog, name resolution, and distributions for batch runs."""
