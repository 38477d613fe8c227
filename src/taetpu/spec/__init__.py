"""Loading of study files. Study files are resolved to runs, and errors name the place in the file and the remedy."""
