"""What a user gets, one file a kind; sequencing only."""
