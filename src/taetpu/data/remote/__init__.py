"""Sources that are no paths: datasets of the Hugging Face hub, published corpora by name, and files in buckets."""
