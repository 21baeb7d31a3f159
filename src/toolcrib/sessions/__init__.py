"""What persists: sessions and their messages, memory, plans."""
