"""One answer from its request to its events: the jobs it takes, second attempts, forced calls."""
