"""The foundation of the package: errors, configs, kinds, keys and sites. Importing it does not import jax."""
