"""Predictions for pictures without labels: files, folders, and whatever comes one by one."""

DEFAULT_METHOD = "clip+panda+level"
"""For pictures of which nothing is known."""
