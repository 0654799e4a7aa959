"""Text in and text out: tokenizer files, and graphs that take and give text."""
