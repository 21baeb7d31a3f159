"""The web: a guarded HTTP client, search providers, and pages as readable text."""
