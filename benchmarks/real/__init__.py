"""Published models with trained weights, exported by each way that fits: python -m benchmarks.real.

Each model has a file: how its own code is loaded and run, and what a user writes to export it.
`texts/` holds 50 inputs for each, written for this purpose.
"""
