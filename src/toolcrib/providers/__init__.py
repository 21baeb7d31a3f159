"""Ways to reach language models: one file for each protocol, and what they share."""
