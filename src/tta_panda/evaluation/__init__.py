"""Streams through methods, and what came out as records in a resumable store."""
