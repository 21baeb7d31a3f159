"""Settings, secrets, paths and logs; the only package that reads the process environment."""
