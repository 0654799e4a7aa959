"""Bundle to a smaller bundle, after a gate of quality; no torch."""
