"""From a model's name to weights and a tokenizer, and what its chat template can take."""
