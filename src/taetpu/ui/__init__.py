"""Live page: a server from which browsers poll the progress of studies."""
