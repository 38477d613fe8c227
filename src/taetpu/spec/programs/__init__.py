"""Study files whose runs are the user's command: settings, words of the command, arms. Never imports JAX."""
