"""Search and reading services on the web, behind one small protocol."""
