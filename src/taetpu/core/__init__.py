"""The foundation of the package: errors, configs, kinds, keys, sites. Importing it does not import jax."""
