"""The agent: a model that works with tools until the question is answered."""
