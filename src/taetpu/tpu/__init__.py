"""Compile studies for TPUs without a TPU (`preflight`), and check machines (`verifying`)."""
