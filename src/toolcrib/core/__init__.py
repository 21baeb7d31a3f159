"""Nouns of the whole package: types, context, ports and errors. No I/O happens here."""
