"""Files of lines in, files of lines out."""
