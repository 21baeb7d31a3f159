"""Decides whether a call may run: what it does, what policy says, and who is asked."""
