"""Memories of vendors that come with toolcrib, written as plugins write theirs."""
