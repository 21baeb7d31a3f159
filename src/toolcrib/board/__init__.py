"""The board: cards that agents and people work on together."""
