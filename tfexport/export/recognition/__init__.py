"""A ``TransformerConfig`` and its weights, recognised in the exported program of a forward."""
