"""`toolcrib serve`: the agent for programs over HTTP."""
