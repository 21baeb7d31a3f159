"""`toolcrib serve`: the agent over HTTP."""
