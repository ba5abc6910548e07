#!/bin/sh
# A SLURM cluster of one node on loopback, with two simulated GPUs, for a test. Everything is in one folder; as root.
#   apt-get install --no-install-recommends slurm-wlm munge
#   F=$(mktemp -d); tests/launchers/cluster.sh start $F; export SLURM_CONF=$F/slurm.conf; …; tests/launchers/cluster.sh stop $F
# Jobs of the partition `high` pre-empt those of `low`, which is where jobs go that name none.
set -eu
folder=$2
if [ "$1" = stop ]; then
    for name in slurmd slurmctld munged; do
        [ -f "$folder/$name.pid" ] && kill "$(cat "$folder/$name.pid")" 2>/dev/null && sleep 1
    done
    exit 0
fi
host=$(hostname -s)
mkdir -p "$folder/state" "$folder/spool"
chmod 755 "$folder"
head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
for number in 0 1; do # SLURM only needs files to hand out CUDA_VISIBLE_DEVICES
    [ -e "$folder/gpu$number" ] || mknod "$folder/gpu$number" c 1 3
done
cat > "$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=60
MinJobAge=3600
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=$host MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
END
echo "Name=gpu File=$folder/gpu[0-1]" > "$folder/gres.conf"
export SLURM_CONF="$folder/slurm.conf"
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 60); do
    if timeout 3 sinfo --noheader --format %T 2>/dev/null | grep -q idle; then exit 0; fi
    sleep 0.5
done
tail "$folder/slurmctld.log" "$folder/slurmd.log" >&2
exit 1
