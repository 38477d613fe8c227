"""Studies whose runs are the user's command: freezing, running and resuming them. Never imports JAX."""
