# Starts a machine with own files, processes and control groups, in the network that the
# script runs in:  bare.sh NAME ROOT debian|busybox PROGRAMS
set -eu
name=$1 root=$2 kind=$3 programs=$4

if [ "${5:-}" != inside ]; then
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		mkdir -p "/sys/fs/cgroup/$name"
		echo $$ >"/sys/fs/cgroup/$name/cgroup.procs"
	else
		for group in /sys/fs/cgroup/*; do
			[ ! -L "$group" ] && [ -e "$group/cgroup.procs" ] || continue
			mkdir -p "$group/$name"
			for limits in cpuset.cpus cpuset.mems; do
				[ ! -e "$group/$limits" ] || cat "$group/$limits" >"$group/$name/$limits"
			done
			echo $$ >"$group/$name/cgroup.procs"
		done
	fi
	exec unshare --cgroup --mount --pid --ipc --uts --propagation private --fork --kill-child sh "$0" "$@" inside
fi

mount --bind "$root" "$root"
cd "$root"
mkdir -p dev proc sys tmp run etc root var/lib var/log var/tmp opt local/bin local/lib "$root$programs"
if [ "$kind" = debian ]; then
	mkdir -p usr
	mount --bind -o ro /usr usr
	mount --bind local usr/local
	for dir in bin sbin lib lib32 lib64; do
		if [ -L "/$dir" ]; then
			cp -P "/$dir" .
		elif [ -d "/$dir" ]; then
			mkdir "$dir"
			mount --bind -o ro "/$dir" "$dir"
		fi
	done
	[ ! -d /etc/alternatives ] || cp -a /etc/alternatives etc/
	[ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache etc/
	[ ! -e /etc/ssl/openssl.cnf ] || { mkdir -p etc/ssl && cp /etc/ssl/openssl.cnf etc/ssl/; }
else
	mkdir -p bin sbin usr/bin usr/sbin usr/local/bin usr/local/lib
	cp "$(command -v busybox)" bin/busybox
	for applet in $(busybox --list); do
		[ "$applet" = busybox ] || ln -s /bin/busybox "bin/$applet"
	done
	ln -s /bin/env usr/bin/env
fi
echo root:x:0:0:root:/root:/bin/sh >etc/passwd
echo root:x:0: >etc/group
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount --bind -o ro "$programs" "$root$programs"
mount -t tmpfs tmpfs sys/fs/cgroup
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mkdir -p sys/fs/cgroup/init
	echo 1 >sys/fs/cgroup/init/cgroup.procs
else
	sed -n 's/^[0-9]*:\([^:]*\):.*/\1/p' /proc/self/cgroup | while read -r hierarchy; do
		[ -n "$hierarchy" ] || continue
		dir=sys/fs/cgroup/${hierarchy#name=}
		mkdir -p "$dir"
		case $hierarchy in name=*) hierarchy=none,$hierarchy ;; esac
		mount -t cgroup -o "$hierarchy" cgroup "$dir"
	done
fi
: >tmp/ready
# Its first process collects those whose parents have ended.
exec chroot . /bin/sh -c 'while :; do sleep 1000 & wait; done'
