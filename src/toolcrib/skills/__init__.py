"""Skills: instructions that an agent opens when it needs them."""
