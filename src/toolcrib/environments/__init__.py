"""Where commands run: one behaviour over many backends."""
