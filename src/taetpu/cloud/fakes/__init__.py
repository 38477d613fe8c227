"""A Google Cloud on this machine, for trying every command offline: the servers are fakes, the clients Google's own.

What they answer encodes our reading of Google's documentation, not Google's word: exact texts of errors, and orders of
events that the documentation leaves open, may differ on the real cloud.

`world` holds what there is and what goes wrong, `server` answers HTTP and gRPC, the other files are a service each.
"""
