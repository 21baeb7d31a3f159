"""The browser: pages that a model reads and works on, in a Chromium of the session's own."""
