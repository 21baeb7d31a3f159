"""The browser: pages that a model reads and acts on, in a separate Chromium for each session."""
