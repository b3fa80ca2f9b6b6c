"""MLX inference behind the Anthropic Messages API."""

__version__ = "0.1.0"
