#!/bin/bash
# First process of a host, in separate namespaces: mounts its root, and becomes its ssh server.
# host_init.sh GOLDEN DISK NAME USER PACKAGES ENVIRONMENT; DISK holds upper, work, root and the user's authorized keys.
set -euo pipefail
golden=$1 disk=$2 name=$3 user=$4 packages=$5 environment=$6 root=$2/root

mount --make-rprivate /
hostname "$name"
mount -t overlay overlay -o "lowerdir=$golden:/,upperdir=$disk/upper,workdir=$disk/work" "$root"
mount -o bind,ro "$packages" "$root/opt/checkout"

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/full" c 1 7
mknod -m 666 "$root/dev/random" c 1 8
mknod -m 666 "$root/dev/urandom" c 1 9
mknod -m 666 "$root/dev/tty" c 5 0
mknod -m 666 "$root/dev/fuse" c 10 229 # for the storage modes MOUNT and MOUNT_CACHED
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for scratch in dev/shm tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$scratch"; done
for scratch in run mnt; do mount -t tmpfs -o mode=755 tmpfs "$root/$scratch"; done
mkdir "$root/run/sshd"

echo "$name" > "$root/etc/hostname"
echo "SetEnv $environment" >> "$root/etc/ssh/sshd_config"
ssh="$root/home/$user/.ssh"
install -d -m 700 -o 1777 -g 1777 "$ssh"
install -m 600 -o 1777 -g 1777 "$disk/keys" "$ssh/authorized_keys"

exec chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /usr/sbin/sshd -D -e
