"""Container images for TPU machines: what goes in, built by Google or here, kept in Artifact Registry, removed.

`context` (what an image is made of, and its tag), `registry` (the repository and what is in it), `cloudbuild` and
`engine` (who builds it: Google's Cloud Build, or docker or podman on this machine).
"""
