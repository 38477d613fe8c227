# Create the virtual environment of a host, unless the requirements are unchanged. Argument: the Python version.
# Standard input: the requirements to install, an empty line, and the exact versions of packages (constraints).
set -eu
base="$HOME/.taetpu"
mkdir -p "$base"
cat >"$base/requirements.new"
[ ! -f "$base/requirements" ] || ! cmp -s "$base/requirements.new" "$base/requirements" || exit 0
rm -f "$base/requirements"
export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/0.13.5/install.sh | UV_NO_MODIFY_PATH=1 sh
uv venv --quiet --clear --python "$1" "$base/venv"
sed '/^$/,$d' "$base/requirements.new" >"$base/wanted"
sed '1,/^$/d' "$base/requirements.new" >"$base/held"
uv pip install --quiet --python "$base/venv/bin/python" --requirements "$base/wanted" --constraints "$base/held"
mv "$base/requirements.new" "$base/requirements"
