"""Hosted services, pretended on loopback: they run real commands here, and note every call that they do not know."""
