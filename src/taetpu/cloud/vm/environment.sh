# Makes the virtual environment of a host, once for each set of requirements; run by the login, who owns it.
# Arguments: the Python version. Standard input: `name==version` lines; those before an empty line are installed, all of
# them are held to.
set -eu
base="$HOME/.taetpu"
mkdir -p "$base"
cat >"$base/requirements.new"
if [ "$(cat "$base/environment" 2>/dev/null)" = preinstalled ] ||
  { [ -f "$base/environment" ] && cmp -s "$base/requirements.new" "$base/environment"; }; then
  exit 0
fi
rm -f "$base/environment"
export PATH="$HOME/.local/bin:$PATH"
# uv brings a Python of its own: the images of TPU machines have an older one than taetpu needs.
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/0.13.5/install.sh | UV_NO_MODIFY_PATH=1 sh
uv venv --quiet --clear --python "$1" "$base/venv"
sed '/^$/,$d' "$base/requirements.new" >"$base/wanted"
sed '1,/^$/d' "$base/requirements.new" >"$base/held"
uv pip install --quiet --python "$base/venv/bin/python" --requirements "$base/wanted" --constraints "$base/held"
uv pip install --quiet --python "$base/venv/bin/python" tpu-info || echo "tpu-info was not installed" >&2
mv "$base/requirements.new" "$base/environment"
