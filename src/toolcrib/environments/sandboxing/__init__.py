"""How the `sandbox` backend confines programs: what they see, by which mechanism, and who starts them inside."""
