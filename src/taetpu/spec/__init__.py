"""From a study file to fully resolved runs, with errors that a person can act on."""
