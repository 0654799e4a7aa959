"""A user's module: called as the contract says, examined by running it, and drawn inputs for it."""
