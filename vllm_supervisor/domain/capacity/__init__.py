"""What fits on which GPU, and how many requests at once: figures from a model's configuration, before anything runs."""
