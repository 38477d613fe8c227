# Runs as root on each host at every boot, after lines that set name, project, zone, api, minutes, latest, idle and image.
export HOME="${HOME:-/root}" PATH="$PATH:/snap/bin" # TPU images have the SDK in /snap/bin. It needs HOME.
state="${STATE_DIRECTORY:-/var/lib/taetpu}"
mkdir -p "$state"
exec >>"$state/startup.log" 2>&1
fail() { echo "$1" >"$state/failed"; exit 1; }
rm -f "$state/ready" "$state/failed"
if ! [[ "$(cat "$state/expires" 2>/dev/null)" =~ ^[0-9]+$ ]]; then
  end=$(($(date +%s) + minutes * 60))
  echo $((end < latest ? end : latest)) >"$state/expires" # latest: from the machine's label
fi

# The timer starts first, so that the machine is deleted even if a later step fails. A reboot does not change the deletion time.
case $api in
  tpu-api)
    describe="gcloud compute tpus queued-resources describe $name --zone=$zone --project=$project --format=none"
    delete="gcloud compute tpus queued-resources delete $name --zone=$zone --project=$project --force --quiet"
    orphan="gcloud compute tpus tpu-vm delete $name --zone=$zone --project=$project --quiet" ;; # outlives its request
  gce)
    delete="gcloud compute instances delete $name --zone=$zone --project=$project --quiet"
    orphan=false ;;
esac
cat >"$state/timer.sh" <<TIMER
active() { # a running job, or somebody logged in
  pgrep -f 'agent.py supervise' >/dev/null || pgrep -f 'sshd: .*@' >/dev/null
}
last=\$(date +%s)
while :; do
  now=\$(date +%s)
  active && last=\$now
  end=\$(cat "$state/expires")
  [[ \$end =~ ^[0-9]+\$ ]] || end=$(cat "$state/expires") # the file is damaged, so the previous end applies
  if [ \$now -ge \$end ] || { [ $idle -gt 0 ] && [ \$((now - last)) -ge $((idle * 60)) ]; }; then
    timeout 300 $delete || timeout 300 $orphan
  fi
  sleep 20
done
TIMER
systemctl is-active --quiet taetpu-timer ||
  systemd-run --quiet --unit=taetpu-timer --setenv=HOME="$HOME" --setenv=PATH="$PATH" --property=Restart=always \
    --property=RestartSec=10 /bin/bash "$state/timer.sh" ||
  fail "the timer cannot start"
if [ "$api" = tpu-api ]; then # only the machine deletes itself, so its account must be able to reach Google
  command -v gcloud >/dev/null || fail "the image has no gcloud, so the machine could not delete itself"
  for pause in 0 5 20 60 end; do
    [ $pause != end ] || fail "Google does not answer, so the machine could not delete itself; check Cloud NAT"
    sleep $pause
    timeout 60 $describe && break
  done
fi

packages=()
command -v rsync >/dev/null || packages+=(rsync)
[ -z "$image" ] || command -v docker >/dev/null || packages+=(docker.io)
if [ ${#packages[@]} -gt 0 ]; then # dpkg's lock may be held by the image's own updates
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=600 -q update &&
    apt-get -o DPkg::Lock::Timeout=600 -q -y install --no-install-recommends "${packages[@]}" ||
    fail "cannot install ${packages[*]}; without an external address, the network needs Cloud NAT"
fi
touch "$state/ready"
