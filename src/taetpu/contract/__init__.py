"""The arm contract: proofs about what arms change, from programs that are traced and lowered, never compiled."""
