"""Predictions for pictures without labels: files, folders, and whatever comes one by one."""
