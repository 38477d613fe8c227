"""What taetpu costs, measured against PyTorch and against itself. See README.md; run from the repository's root."""
