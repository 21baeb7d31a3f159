"""Tool definitions: builds them, renders them for each provider, and defers rarely used ones to a search."""
