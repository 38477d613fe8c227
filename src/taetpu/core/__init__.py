"""What everything else stands on: errors, configs, kinds, keys, sites. Importing this package imports no jax."""
