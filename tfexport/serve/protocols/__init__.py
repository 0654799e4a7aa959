"""The protocols that a server speaks, one file each."""
