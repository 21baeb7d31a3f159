"""The agent: a model that works with tools until it has answered the question."""
