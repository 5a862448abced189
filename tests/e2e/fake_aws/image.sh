#!/bin/bash
# Builds the image of a host, as root in a chroot whose lower layer is this machine and whose upper layer is the image.
# image.sh BASE_PYTHON PARTS, the folder that build.py filled.
set -euo pipefail
python=$1 parts=$2
home=/home/ubuntu

# As cloud-init on a real machine: the user, its permissions, and an ssh server that accepts it.
userdel --force ubuntu 2> /dev/null || true # exists if this machine runs Ubuntu
rm -rf $home
useradd --create-home --uid 1777 --shell /bin/bash --password '*' ubuntu # sshd takes the usual '!' for a locked account
echo 'ubuntu ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/90-ubuntu
chmod 440 /etc/sudoers.d/90-ubuntu
chmod 711 /root # the base Python may be below it
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
cp "$parts/sshd_config" /etc/ssh/sshd_config
echo 'export PATH=$HOME/.local/bin:$PATH' > $home/.bashrc
cp $home/.bashrc $home/.profile

# The names in a cloud's DNS. Gloo binds to the address of the host's own name, which must not be a loopback address.
{
    echo '127.0.0.1 localhost'
    for net in 1 2 3 4; do for host in {0..255}; do echo "10.77.$net.$host ip-10-77-$net-$host"; done; done
} > /etc/hosts

# Programs that SkyPilot would download: uv, ray, SkyPilot. Python 3.11 replaces the requested 3.10.
install -D -m 755 "$parts/uv" $home/.local/bin/uv
install -m 755 "$parts/rclone" /usr/local/bin/rclone
"$python" -m venv $home/skypilot-runtime
$home/skypilot-runtime/bin/pip install -qq --requirement "$parts/host.lock"

# Packages for the user's commands: torch and the rest of the checkout's environment, except for holdfast. Each host mounts
# that environment at /opt/checkout.
"$python" -m venv $home/sky-user-env
$home/sky-user-env/bin/pip uninstall -qq --yes setuptools # that of Python, older than torch requires
mkdir -p /opt/packages
sed 's|^|/opt/checkout/|' "$parts/packages" | xargs -d '\n' ln -s -t /opt/packages
echo /opt/packages > "$(echo $home/sky-user-env/lib/python*/site-packages)/checkout.pth"

# From here on without a network, as later on the host.
mkdir -p /etc/uv
printf 'offline = true\npython-downloads = "never"\n' > /etc/uv/uv.toml
printf '[global]\nno-index = true\ndisable-pip-version-check = true\n' > /etc/pip.conf
rm -f /etc/resolv.conf
: > /etc/resolv.conf

# SkyPilot's set-up of a new host, in advance.
mkdir -p $home/.sky
cp -r "$parts/wheels" $home/.sky/wheels
chown -R ubuntu:ubuntu $home
as_ubuntu=(env -i HOME=$home USER=ubuntu PATH=$home/.local/bin:/usr/local/bin:/usr/bin:/bin setpriv --reuid=ubuntu --regid=ubuntu --init-groups)
unshare --net "${as_ubuntu[@]}" bash "$parts/setup.sh"
"${as_ubuntu[@]}" $home/sky-user-env/bin/pip install -qq torch numpy boto3 safetensors # all installed
"${as_ubuntu[@]}" $home/sky-user-env/bin/python -c '
import torch, numpy, boto3, safetensors
from importlib.util import find_spec
assert find_spec("holdfast") is None and find_spec("holdfast_worker") is None, "the checkout is visible on hosts"'
