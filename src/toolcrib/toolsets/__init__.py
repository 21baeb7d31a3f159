"""Named bundles of tools: the catalog as data, how a name becomes tool names, and what batch runs sample from."""
