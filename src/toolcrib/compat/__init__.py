"""Modules under the reference system's names, for tool files, plugins and test suites written for it.

They are reached through `toolcrib.registry.compat_imports` and import what they wrap; nothing of ours imports them.
"""
