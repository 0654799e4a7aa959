"""What a user gets, one file for each kind of artifact; ``export`` and ``verify`` choose one."""
