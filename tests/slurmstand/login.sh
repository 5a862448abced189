# Process 1 of the login node: the host's files, but its own network, name and processes.  login.sh STATE ADDRESS
set -e
state=$1 address=$2
hostname login
mount -t proc proc /proc
# The places where every daemon looks by itself; nobody outside sees them.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/munge
# A small system may lack what is bound over.
[ -e /etc/hosts ] || : > /etc/hosts
mkdir -p /etc/slurm
mount --bind "$state/etc/hosts" /etc/hosts
mount --bind "$state/etc/slurm" /etc/slurm
ip link set lo up
ip link add br0 type bridge forward_delay 0
ip addr add "$address/24" dev br0
ip link set br0 up
munged --force --key-file="$state/etc/munge.key" --log-file="$state/log/login.munged" --seed-file=/run/munge/seed
slurmctld -i
touch "$state/run/login.ready"
trap 'exit 0' TERM
set +e
while :; do wait -n 2>/dev/null || sleep 1; done  # Reaps what has lost its parent.
