"""Evaluation of methods on streams, with results as records in a resumable store."""
