"""Load study files and resolve them to runs. Errors name the place in the file and the remedy."""
