"""External memory providers that come with toolcrib, written like those of plugins."""
