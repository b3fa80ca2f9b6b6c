"""The thread that owns MLX: scheduling, prefill, decoding, and the prompt cache."""
