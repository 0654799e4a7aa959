"""The models of the field as their own code has them: same keys, same mathematics, nothing ours."""
