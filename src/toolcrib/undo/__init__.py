"""Undo: snapshots of files before tools and commands change them, and how they are restored."""
