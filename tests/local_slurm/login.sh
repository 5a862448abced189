# Process 1 of the login node: the host's files, but its own network, name and processes.  login.sh STATE ADDRESS
set -e
PATH=$PATH:/usr/sbin:/sbin
state=$1 address=$2
hostname login
mount -t proc proc /proc
# Default paths of the daemons; these mounts are invisible outside of the node.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/munge
# A small system may lack the targets of the bind mounts.
[ -e /etc/hosts ] || : > /etc/hosts
mkdir -p /etc/slurm
mount --bind "$state/etc/hosts" /etc/hosts
mount --bind "$state/etc/slurm" /etc/slurm
# The shell profile of this machine's root is not part of the cluster, and may be slow.
for file in ~root/.profile ~root/.bash_profile ~root/.bash_login ~root/.bashrc; do
  [ ! -e "$file" ] || mount --bind /dev/null "$file"
done
ip link set lo up
ip link add br0 type bridge forward_delay 0
ip addr add "$address/24" dev br0
ip link set br0 up
munged --force --key-file="$state/etc/munge.key" --log-file="$state/log/login.munged" --seed-file=/run/munge/seed
slurmctld -i
# An sshd as on a login node, if one is installed. Its keys are removed with the cluster, and only this network reaches it.
if sshd=$(command -v sshd); then
  mkdir /run/sshd "$state/ssh"
  for key in host me; do ssh-keygen -q -t ed25519 -N '' -C "$key" -f "$state/ssh/$key"; done
  echo "login $(cat "$state/ssh/host.pub")" > "$state/ssh/known"
  # StrictModes=no: the keys are below /tmp, which sshd does not trust.
  "$sshd" -f /dev/null -E "$state/log/login.sshd" -o ListenAddress="$address" -o HostKey="$state/ssh/host" \
    -o AuthorizedKeysFile="$state/ssh/me.pub" -o StrictModes=no -o PermitRootLogin=prohibit-password \
    -o AuthenticationMethods=publickey -o AllowUsers=root -o PidFile=none
fi
touch "$state/run/login.ready"
trap 'exit 0' TERM
set +e
while :; do wait -n 2>/dev/null || sleep 1; done  # Reaps orphaned processes.
