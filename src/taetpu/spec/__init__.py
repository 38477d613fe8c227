"""Loading of study files: they are resolved to runs, and errors name the place in the file and the remedy."""
