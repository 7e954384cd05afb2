"""Predictions for pictures without labels: files, folders and streams."""

DEFAULT_METHOD = "clip+panda+level"
"""For pictures about which nothing is known."""
