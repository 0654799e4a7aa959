"""Batches, worker threads and CPU cores."""
