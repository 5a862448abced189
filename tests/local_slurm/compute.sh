# Process 1 of a compute node: a copy of `/` with writes in memory; only bind mounts are shared.
#   compute.sh STATE NAME ADDRESS GPUS FOLDER...    the folders are the same on all nodes, as on a network file system
set -e
state=$1 name=$2 address=$3 gpus=$4
shift 4
root=$state/mnt/root
hostname "$name"
mount -t tmpfs -o mode=755 tmpfs "$state/mnt"
mkdir "$state/mnt"/{up,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$state/mnt/up,workdir=$state/mnt/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
# Hides the state of the login node from the compute nodes.
mkdir -p "$root$state"
mount -t tmpfs -o mode=755 tmpfs "$root$state"
mkdir -p "$root$state/log" "$root$state/etc" "$root/var/spool/slurmd-$name" "$root/etc/slurm" "$root/run/fakegpu"
bind() {
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; : > "$root$2"; fi
  mount --rbind "$1" "$root$2"
}
# As on the login node. Slurm starts a job with what a login shell sets.
home=$root$(echo ~root)
rm -f "$home"/{.profile,.bash_profile,.bash_login,.bashrc}
touch "$state/log/$name.slurmd"
bind "$state/etc/slurm" /etc/slurm
bind "$state/etc/hosts" /etc/hosts
bind "$state/log/$name.slurmd" "$state/log/$name.slurmd"
for folder; do bind "$folder" "$folder"; done
install -m 400 "$state/etc/munge.key" "$root$state/etc/munge.key"
# Slurm only checks that the devices exist: clones of /dev/null.
for ((number = 0; number < gpus; number++)); do mknod "$root/run/fakegpu/$number" c 1 3; done
cd "$root"
pivot_root . mnt
cd /
umount -l /mnt
ip link set lo up
for ((tries = 0; tries < 200; tries++)); do ip link show eth0 >/dev/null 2>&1 && break; sleep 0.05; done
ip addr add "$address/24" dev eth0
ip link set eth0 up
mkdir -p /run/munge
munged --force --key-file="$state/etc/munge.key" --log-file=/run/munge/log --seed-file=/run/munge/seed
slurmd -N "$name"
trap 'exit 0' TERM
set +e
while :; do wait -n 2>/dev/null || sleep 1; done
