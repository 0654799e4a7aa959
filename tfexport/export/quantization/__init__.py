"""Bundle to a smaller bundle, behind a gate of quality; no torch."""
