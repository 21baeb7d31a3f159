"""Texts that run where a script runs: nothing there can import us, so they need nothing but Python 3.7."""
