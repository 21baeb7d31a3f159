"""Generates images and videos with paid services, behind one small protocol each."""
