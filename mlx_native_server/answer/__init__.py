"""The model's text in, Anthropic's events out."""
