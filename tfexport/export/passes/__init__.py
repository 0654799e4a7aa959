"""Graph to the same graph, faster or smaller; no torch."""
