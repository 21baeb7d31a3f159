"""Model providers: one module per protocol, and what they share."""
