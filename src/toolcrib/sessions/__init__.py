"""What lasts: sessions and their messages, memory, plans."""
