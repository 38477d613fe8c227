"""Benchmarks of taetpu against PyTorch and itself; see README.md. Run them from the repository's root."""
