"""Batches, worker threads and the cores they run on."""
