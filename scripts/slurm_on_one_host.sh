#!/usr/bin/env bash
# A Slurm of four nodes on this host, for as long as a command runs in it:
#
#     scripts/slurm_on_one_host.sh srun -N4 -n4 foresail-worker run plan.yaml -o run
#
# munged, slurmctld and four slurmd with a configuration of their own in a temporary folder, which
# goes with them. Needs root and Debian's munge, slurmctld, slurmd and slurm-client. MASTER_ADDR is
# set, since the names of the four nodes are no host names.
set -euo pipefail
if ((EUID != 0)); then
  echo "slurm_on_one_host.sh: slurmd must be started by root" >&2
  exit 2
fi
for program in munged slurmctld slurmd srun; do
  if ! command -v "$program" >/dev/null; then
    echo "slurm_on_one_host.sh: $program is not installed" >&2
    exit 2
  fi
done

folder=$(mktemp -d /tmp/slurm_on_one_host_XXXXXX)
chmod 755 "$folder"
mkdir -m 755 "$folder/munge" "$folder/state" "$folder/spool" "$folder/spool/"n{0..3}
stop() {
  local file pid
  for file in "$folder"/slurmd-*.pid "$folder/slurmctld.pid" "$folder/munge/pid"; do
    [[ -e $file ]] || continue
    pid=$(<"$file")
    kill "$pid" 2>/dev/null || continue
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
  done
  rm -rf "$folder"
}
trap stop EXIT

host=$(hostname -s)
port=$((20000 + RANDOM % 10000))
cat >"$folder/slurm.conf" <<END
ClusterName=one_host
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
KillOnBadExit=1
NodeName=n[0-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 4))] CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
(umask 077 && head -c 128 /dev/urandom >"$folder/munge/key")
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
  --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" \
  --seed-file="$folder/munge/seed" 2>/dev/null
export SLURM_CONF=$folder/slurm.conf MASTER_ADDR=127.0.0.1
slurmctld -f "$SLURM_CONF"
for node in n0 n1 n2 n3; do
  slurmd -f "$SLURM_CONF" -N "$node"
done
for ((tries = 0; tries < 300; ++tries)); do
  [[ $(sinfo --noheader --states=idle --format=%D 2>/dev/null) == 4 ]] && break
  sleep 0.1
done
if ((tries == 300)); then
  echo "slurm_on_one_host.sh: the nodes do not become idle" >&2
  tail -n 5 "$folder"/*.log >&2
  exit 1
fi
"$@"
