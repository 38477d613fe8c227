"""Live page: a server that streams the progress of studies to browsers."""
