#!/usr/bin/env bash
# A real SLURM with one node on this machine: munged, slurmctld and slurmd on the loopback interface, without systemd,
# everything under DIRECTORY.
#   slurm_local.sh start DIRECTORY   prints the lines to evaluate: SLURM_CONF and PATH
#   slurm_local.sh stop DIRECTORY    ends what start started
#   slurm_local.sh outage DIRECTORY  ends slurmctld alone; `recover` starts it again with the state it has saved
# SLURM_LOCAL_OOMKILL=1 ends jobs that use more memory than they asked for, looking every second.
# Needs root, and Debian's packages slurm-wlm and munge, which are installed if they are missing and apt-get may.
# Partitions: cpu (default) and gpu, and low, whose jobs are requeued when the others need their place. GPUs are fake.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
say() { printf 'slurm_local: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
verb=${1:-}; dir=${2:-}
[ -n "$verb" ] && [ -n "$dir" ] || die "usage: slurm_local.sh start|stop|outage|recover DIRECTORY"
cpus=${SLURM_LOCAL_CPUS:-4}; memory=${SLURM_LOCAL_MEM_MB:-64000}; gpus=${SLURM_LOCAL_GPUS:-2}

# A process is its number and the time it began, so that a number that was given again is left alone.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
record() { echo "$! $(began $!)" >>"$dir/started"; }
wait_until() { local n; for n in $(seq 100); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done; return 1; }

stop() {
    [ -f "$dir/started" ] || return 0
    # At once: Snakemake takes its time after SIGTERM.
    scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
    scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 40); do [ -n "$(squeue -h -t R,CG 2>/dev/null)" ] || break; sleep 0.25; done
    tac "$dir/started" | while read -r pid then; do
        for signal in TERM KILL; do
            [ "$(began "$pid")" = "$then" ] || break
            kill -$signal "$pid" 2>/dev/null || true
            for _ in $(seq 50); do [ "$(began "$pid")" = "$then" ] || break; sleep 0.1; done
        done
    done
    # Jobs that were cancelled may leave processes behind, which no daemon knows any more.
    for process in /proc/[0-9]*; do
        [ "${process#/proc/}" = $$ ] || ! tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF" ||
            kill -KILL "${process#/proc/}" 2>/dev/null || true
    done
    rm -f "$dir/started"
}

controller() {
    setsid slurmctld -D -i -f "$SLURM_CONF" </dev/null >>"$dir/slurmctld.log" 2>&1 &
    record
    wait_until sh -c 'scontrol ping | grep -q "is UP"' || die "slurmctld does not answer"
}

mkdir -p "$dir"; dir=$(readlink -f "$dir"); export SLURM_CONF=$dir/slurm.conf
case $verb in
    stop) stop; exit 0 ;;
    outage) kill "$(cat "$dir/slurmctld.pid")"; wait_until sh -c '! scontrol ping | grep -q "is UP"'; exit ;;
    recover) controller; exit 0 ;;
    start) ;;
    *) die "unknown: $verb" ;;
esac
[ "$(id -u)" = 0 ] || die "needs root"
[ ${#dir} -le 80 ] || die "$dir is too long for the name of a socket"
installed() { local name; for name in slurmctld slurmd munged sbatch; do command -v $name >/dev/null || return 1; done; }
if ! installed; then
    command -v apt-get >/dev/null || die "slurm-wlm and munge are not installed, and there is no apt-get"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; } >"$dir/apt.log" 2>&1 ||
        die "slurm-wlm and munge cannot be installed: $(tail -n 1 "$dir/apt.log")"
    installed || die "the packages slurm-wlm and munge lack something"
fi
[ ! -f "$dir/started" ] || die "already running in $dir"
trap 'status=$?; [ $status = 0 ] || { tail -n 3 "$dir"/*.log >&2; stop; }' EXIT
: >"$dir/started"
host=$(hostname -s)
# Below the range of outgoing connections, which could take a port between this look and its use.
read -r port_ctld port_node < <(python3 - <<'PY'
import random, socket
free = []
while len(free) < 2:
    port = random.randrange(20000, 32000)
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            continue
    free.append(port)
print(*free)
PY
)

mkdir -p -m 0700 "$dir/munge"; mkdir -p "$dir/state" "$dir/spool" "$dir/bin"
(umask 077; head -c 1024 /dev/urandom >"$dir/munge/key")
setsid munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge/seed" </dev/null >>"$dir/munged.log" 2>&1 &
record
wait_until munge -n -S "$dir/munge.socket" || die "munged does not answer"

accounting=JobAcctGatherType=jobacct_gather/none
[ "${SLURM_LOCAL_OOMKILL:-0}" = 0 ] ||
    accounting=$'JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill'
cat >"$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$port_ctld
AuthType=auth/munge
CredType=cred/munge
# A job that was requeued starts again when its credential has expired: 120 s by default.
AuthInfo=socket=$dir/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
$accounting
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/jobs.txt
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
MailProg=/bin/true
SwitchType=switch/none
GresTypes=gpu
JobRequeue=1
MinJobAge=3600
KillWait=30
InactiveLimit=0
TCPTimeout=5
DefMemPerCPU=100
NodeName=$host NodeAddr=127.0.0.1 Port=$port_node CPUs=$cpus RealMemory=$memory Gres=gpu:fake:$gpus State=UNKNOWN
PartitionName=cpu Nodes=$host Default=YES MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=gpu Nodes=$host MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=$host MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE
CONF
echo "AutoDetect=off" >"$dir/gres.conf"
for index in $(seq 0 $((gpus - 1))); do
    # A character device, or else CUDA_VISIBLE_DEVICES stays unset: twins of /dev/null.
    [ -c "$dir/gpu$index" ] || mknod "$dir/gpu$index" c 1 3
    echo "NodeName=$host Name=gpu Type=fake File=$dir/gpu$index" >>"$dir/gres.conf"
done
# The workflow's executor drops SLURM_CONF inside of a job: these know it by themselves.
for name in sbatch srun scancel squeue sinfo scontrol; do
    printf '#!/bin/sh\nSLURM_CONF=%q exec %q "$@"\n' "$SLURM_CONF" "$(command -v $name)" >"$dir/bin/$name"
    chmod 755 "$dir/bin/$name"
done

controller
setsid slurmd -D -f "$SLURM_CONF" </dev/null >>"$dir/slurmd.log" 2>&1 &
record
wait_until sh -c 'sinfo -h -p cpu -o %T | grep -q idle' || die "the node does not come up"
timeout 20 srun -p cpu -n1 --mem=50 -t 1 true || die "srun does not work"
disown -a
echo "export SLURM_CONF='$SLURM_CONF' PATH='$dir/bin':\"\$PATH\""
