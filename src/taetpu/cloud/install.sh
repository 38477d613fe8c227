# Install the copy of taetpu in ~/.taetpu/src: the job agent, the command `taetpu` for jobs, and the package's metadata,
# from which importlib.metadata reads the version. Argument: the version. Standard input: the metadata.
set -eu
base="$HOME/.taetpu"
rm -rf "$base"/src/taetpu-*.dist-info
mkdir -p "$base/src/taetpu-$1.dist-info" "$base/bin"
cat >"$base/src/taetpu-$1.dist-info/METADATA"
cp "$base/src/taetpu/cloud/agent.py" "$base/agent.py"
cat >"$base/bin/taetpu" <<'COMMAND'
#!/bin/sh
PYTHONPATH="$HOME/.taetpu/src" exec "$HOME/.taetpu/venv/bin/python" -m taetpu "$@"
COMMAND
chmod +x "$base/bin/taetpu"
