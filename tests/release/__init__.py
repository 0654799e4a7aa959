"""Distributions as somebody gets them: built, looked into, and tried in fresh environments."""
