"""Files of sound and pictures to inputs of a model, by numpy."""
