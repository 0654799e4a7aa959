"""A user's module: its contract, examination by running it, and inputs for that."""
