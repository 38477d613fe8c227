# What each host runs as root whenever it boots, after the lines that name the facts and bring the files. On the fakes it
# runs without privileges, with TAETPU_VM_ROOT as the private folder: nothing is installed there.
exec >>"$private/startup.log" 2>&1
failed() { echo "$1" >"$private/failed.new"; mv "$private/failed.new" "$private/failed"; exit 1; }
rm -f "$private/ready" "$private/failed"
chmod 755 "$private" "$private/machine"

# The guard comes first: whatever fails below, the machine goes when its time is over.
guard='import sys; sys.path.insert(0, sys.argv[1]); from machine import guard; sys.exit(guard.main(sys.argv[2:]))'
if [ -n "${TAETPU_VM_ROOT:-}" ]; then
  setsid -f python3 -I -c "$guard" "$private" "$HOME" </dev/null >/dev/null 2>>"$private/guard.log"
else
  cat >/etc/systemd/system/taetpu-guard.service <<UNIT
[Unit]
Description=Deletes this TPU when its time is over or nobody uses it
After=network-online.target
[Service]
ExecStart=/usr/bin/python3 -I -c '$guard' $private '/home/*'
Restart=always
RestartSec=10
StandardError=append:$private/guard.log
[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload && systemctl enable taetpu-guard && systemctl restart taetpu-guard ||
    failed "the guard cannot be started"

  fetch() { # the lock of dpkg may be held by the image's own updates for a while
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -q -y install --no-install-recommends "$@"
  }
  wanted=()
  command -v rsync >/dev/null || wanted+=(rsync)
  command -v curl >/dev/null || wanted+=(curl ca-certificates)
  [ -z "$image" ] || command -v docker >/dev/null || wanted+=(docker.io)
  if [ ${#wanted[@]} -gt 0 ]; then
    { apt-get -o DPkg::Lock::Timeout=600 -q update && fetch "${wanted[@]}"; } ||
      failed "cannot install ${wanted[*]}: without an address of its own a machine needs Cloud NAT to reach apt's servers"
  fi
fi
date -u +%Y-%m-%dT%H:%M:%SZ >"$private/ready.new" && mv "$private/ready.new" "$private/ready"
