"""From a study file to fully resolved runs, with errors that name the place and the remedy."""
