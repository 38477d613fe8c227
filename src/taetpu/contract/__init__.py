"""The arm contract: checks of the changes that arms make, on programs that are traced and lowered but not compiled."""
