"""Background processes: start, watch, write to and end them, and recover them after a crash of toolcrib."""
