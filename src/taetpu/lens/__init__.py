"""The lens: trained and imported models opened for generation, inspection and ablation."""
