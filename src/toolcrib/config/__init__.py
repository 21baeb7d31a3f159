"""Settings, secrets, folders and logs: the only part of the package that reads the environment."""
