"""Tasks whose sequences are generated on the device from a key, and the scores that models should be compared with."""
