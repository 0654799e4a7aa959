"""One file a graph form: torch module, inputs and outputs, export function."""
