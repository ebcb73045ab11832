"""Batches and metrics go in; decisions come out: accept, skip, roll back, lower the learning rate, halt."""
