"""What a person does with the server: install, start, watch, diagnose, remove."""
