"""A bundle's sessions, and the state of its decoder."""
