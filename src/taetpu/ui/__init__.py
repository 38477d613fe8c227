"""The live page: a server that reads the store, and never touches what trains."""
