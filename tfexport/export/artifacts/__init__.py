"""The public export functions, one file for each kind of artifact; they only call other rooms."""
