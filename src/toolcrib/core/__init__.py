"""The types, contexts, ports and errors that the whole package shares. No I/O happens here."""
