"""Scripts that call tools."""
