#!/bin/bash
# Builds the image in FOLDER/upper: runs image.sh in a chroot over this machine's root, in a separate mount namespace.
# chroot.sh FOLDER BASE_PYTHON PARTS PACKAGES
set -euo pipefail
folder=$1 python=$2 parts=$3 packages=$4 root=$1/root
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
mkdir "$root/opt/checkout"
mount -o bind,ro "$packages" "$root/opt/checkout"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
exec chroot "$root" /bin/bash "$parts/image.sh" "$python" "$parts"
