"""Batches, worker processes and the cores they run on."""
