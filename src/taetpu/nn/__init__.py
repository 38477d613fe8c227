"""The model: one slot a file, each kind's config and module side by side; block, stack and LM put them together."""
