"""From a request's JSON to what the model's chat template takes."""
