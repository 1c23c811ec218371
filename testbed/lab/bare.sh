# Starts a machine with own files, processes and control groups, in the network that the
# script runs in:  bare.sh NAME ROOT debian|busybox|systemd|openrc PROGRAMS
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
case $kind in
debian | systemd)
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
	;;
busybox | openrc)
	mkdir -p bin sbin usr/bin usr/sbin usr/local/bin usr/local/lib
	cp "$(command -v busybox)" bin/busybox
	for applet in $(busybox --list); do
		[ "$applet" = busybox ] || ln -s /bin/busybox "bin/$applet"
	done
	ln -s /bin/env usr/bin/env
	;;
esac
case $kind in
systemd)
	# Users, and what su and useradd need. The backups are made by the first change.
	for file in login.defs pam.conf pam.d security nsswitch.conf shells; do
		[ ! -e "/etc/$file" ] || cp -a "/etc/$file" etc/
	done
	for file in shadow gshadow subuid subgid passwd- group- shadow- gshadow- subuid- subgid- .pwd.lock; do
		: >"etc/$file"
		chmod 600 "etc/$file"
	done
	echo 'root:*:1::::::' >etc/shadow
	echo 'root:*::' >etc/gshadow
	# Of the units of this machine's packages only the journal's start by themselves.
	mkdir -p etc/systemd/system
	for unit in /lib/systemd/system/*.target.wants/*; do
		unit=${unit##*/}
		case $unit in
		systemd-journald.* | systemd-journald-dev-log.* | '*') ;;
		*) ln -sf /dev/null "etc/systemd/system/$unit" ;;
		esac
	done
	ln -sf /lib/systemd/system/multi-user.target etc/systemd/system/default.target
	tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
	;;
openrc)
	dpkg -L openrc | while read -r file; do
		case $file in
		/usr/share/* | /etc/init.d/*) ;;
		*)
			if [ -d "$file" ]; then
				mkdir -p ".$file"
			else
				rm -f ".$file"
				cp -P "$file" ".$file"
			fi
			;;
		esac
	done
	# Debian's build asks PAM, which Alpine's does not have.
	permit=$(ls /lib/*/security/pam_permit.so)
	mkdir -p etc/pam.d
	for module in auth account session; do echo "$module required pam_permit.so"; done >etc/pam.d/other
	# Debian's wget of busybox has no TLS 1.3, which Alpine's has.
	cp "$(command -v curl)" usr/bin/curl
	for program in /sbin/openrc-run /sbin/supervise-daemon /lib/rc/bin/checkpath "$(command -v curl)"; do
		ldd "$program" | sed -n 's/^[^/]*\(\/[^ ]*\) .*/\1/p'
	done | { echo "$permit"; sort -u; } | while read -r file; do
		mkdir -p ".${file%/*}"
		cp "$file" ".$file"
	done
	mkdir -p etc/init.d
	ln -s ../run var/run
	: >etc/insserv.conf
	# Debian's package has no services; these two are those of Alpine that ours name.
	for service in localmount net; do
		printf '#!/sbin/openrc-run\nstart() { :; }\n' >etc/init.d/$service
		chmod 755 etc/init.d/$service
	done
	# Debian's busybox leaves out these three; they take what Alpine's take.
	cat >usr/sbin/addgroup <<-'END'
		#!/bin/sh
		[ "$#/$1" = 2/-S ] && echo "$2:x:900:" >>/etc/group
	END
	cat >usr/sbin/adduser <<-'END'
		#!/bin/sh
		[ "$1 $2 $3 $4 $6 $8 $9" = "-S -D -H -h -s -G treeline" ] && shift 9 && echo "$1:x:900:900::/:/sbin/nologin" >>/etc/passwd
	END
	cat >usr/sbin/deluser <<-'END'
		#!/bin/sh
		sed -i "/^$1:/d" /etc/passwd /etc/group
	END
	chmod 755 usr/sbin/addgroup usr/sbin/adduser usr/sbin/deluser
	printf 'rc_sys="lxc"\nrc_controller_cgroups="NO"\n' >>etc/rc.conf
	;;
esac
echo root:x:0:0:root:/root:/bin/sh >etc/passwd
echo root:x:0: >etc/group
mount -t proc proc proc
mount -t sysfs sysfs sys
case $kind in
systemd | openrc) # systemd and the journal make files there
	mount -t tmpfs -o mode=755 tmpfs dev
	mkdir -p dev/net dev/shm dev/pts
	for file in null zero full random urandom tty net/tun fuse kvm; do
		[ -e "/dev/$file" ] || continue
		: >"dev/$file"
		mount --bind "/dev/$file" "dev/$file"
	done
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
	;;
*) mount --rbind /dev dev ;;
esac
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
case $kind in
systemd) exec chroot . /usr/bin/env -i container=lab PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no ;;
openrc) boot='openrc sysinit; openrc boot; openrc default;' ;;
*) boot='' ;;
esac
# The first process collects those whose parents have ended.
exec chroot . /usr/bin/env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -c "$boot while :; do sleep 1000 & wait; done"
