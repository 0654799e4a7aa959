"""The engines that compute a bundle's model, and the state of its decoder."""
