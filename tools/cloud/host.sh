#!/usr/bin/env bash
# host.sh FOLDER NAME CPUS: becomes the libvirtd of one compute host, a machine apart on this machine. To
# be run by "unshare --mount --uts --propagation private". It has a cgroup tree of its own, since two
# libvirts in one tree would share the folder of domains of the same id and name, which source and
# destination of a live migration have; its own /etc/libvirt, /run/libvirt and so on; and its cores.
set -eu
folder=$1 name=$2 cpus=$3

cgroups() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2, $3, $4 }' /proc/self/mounts; }

if [ "${4:-}" != inside ]; then
    while read -r where _; do
        mkdir -p "$where/$name"
        if [ -e "$where/$name/cpuset.mems" ]; then
            echo "$cpus" >"$where/$name/cpuset.cpus"
            cat "$where/cpuset.mems" >"$where/$name/cpuset.mems"
        fi
        echo $$ >"$where/$name/cgroup.procs"
    done < <(cgroups)
    exec unshare --cgroup "$0" "$folder" "$name" "$cpus" inside
fi

while read -r where kind options; do
    controllers=$(tr , '\n' <<<"$options" | grep -vxE 'rw|relatime|nosuid|nodev|noexec' | paste -sd,)
    case $controllers in name=*) controllers=none,$controllers ;; esac
    umount "$where"
    mount -t "$kind" ${controllers:+-o "$controllers"} "$kind" "$where"
done < <(cgroups)

hostname "$name"
mkdir -p /run/libvirt
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/etc" /etc/libvirt
mount --bind "$folder/run" /run/libvirt
mount --bind "$folder/lib" /var/lib/libvirt
mount --bind "$folder/cache" /var/cache/libvirt
mount --bind "$folder/log" /var/log/libvirt
mount --bind "$folder/online" /sys/devices/system/cpu/online
# Every guest is emulated, which the agent expects of a host without KVM.
kvm=/sys/devices/virtual/misc/kvm
[ ! -e "$kvm" ] || mount -t tmpfs none "$kvm"
# Every guest gets the plugin that counts instructions: see counting.py.
mount --bind /usr/bin/qemu-system-x86_64 "$folder/qemu/bin/qemu-system-x86_64"
mount --bind "$folder/qemu/wrapper" /usr/bin/qemu-system-x86_64

virtlogd --pid-file /run/libvirt/virtlogd.pid &
exec libvirtd --pid-file /run/libvirt/libvirtd.pid
