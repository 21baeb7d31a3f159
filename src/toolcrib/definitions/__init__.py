"""What a model is offered: tool definitions, rendered for each provider, with the long tail behind a search."""
