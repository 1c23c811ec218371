#!/bin/sh
# Installs Treeline on this machine: on Debian, Alpine and other Linux systems, with
# systemd, OpenRC or neither. It needs a POSIX shell, sha256sum, and curl or wget.
#
#   install.sh node --token-file FILE        makes the machine a node of a cluster
#   install.sh cluster --name NAME --token-file FILE
#   install.sh root                          starts a new installation
#   install.sh uninstall                     removes everything that the script installed
#   install.sh start | stop                  without a service manager: the daemons
#
#   --token-file FILE   the join token; - reads it from stdin. TREELINE_TOKEN works too
#   --name NAME         of the cluster, or of the node; a node gets one from its cluster
#   --url URL           https://host:port under which others reach this root or cluster
#   --containerd        install containerd from the system's packages, and start it
#   --no-containerd     do not, and do not ask
#   --no-network        without the netmanager: workloads have no overlay network
#   --init NAME         systemd, openrc or none; without it, what runs on the machine
#   --from URL or DIR   where the files are; without it, where the script is from
#   --yes               uninstall without a question
#
# Running it again upgrades what has changed and keeps the configuration in /etc/treeline.
# Workloads of a node keep running during an upgrade. A run that fails before the machine
# has joined leaves nothing behind; a run that was killed is completed by the next one.

# The server that serves this script, or the bundle, sets the version, the place of the
# files, and their list: SHA-256, size and name of each.
version='' from='' list=''
#@ list

lib=/usr/local/lib/treeline # programs, and this script
bin=/usr/local/bin
etc=/etc/treeline
state=/var/lib/treeline
run=/run/treeline
logs=/var/log/treeline
stage=$lib/.new # files of a run that has not ended

umask 022
tab=$(printf '\t')

say() { printf '%s\n' "$*"; }
done_() { printf '✔ %-13s %s\n' "$1" "$2"; }
warn() {
	printf '! %-13s %s\n' "$1" "$2" >&2
	[ $# -lt 3 ] || printf '  %-13s fix: %s\n' '' "$3" >&2
}

# fail STEP CAUSE FIX: ends the script.
fail() {
	printf '✗ %-13s %s\n' "$1" "$2" >&2
	[ $# -lt 3 ] || printf '  %-13s fix: %s\n' '' "$3" >&2
	exit 1
}

usage() {
	sed -n '2,/^$/{s/^# \{0,1\}//;p;}' "$0"
	exit "$1"
}

has() { command -v "$1" >/dev/null 2>&1; }

# Arguments

role='' token_file='' name='' url='' containerd='' network=yes init='' yes=''

arguments() {
	case ${1:-} in
	node | cluster | root | uninstall | start | stop | supervise) role=$1 ;;
	-h | --help) usage 0 ;;
	*) fail arguments "\"${1:-}\" is nothing to install" "install.sh node, cluster, root or uninstall; see install.sh --help" ;;
	esac
	shift
	while [ $# -gt 0 ]; do
		case $1 in
		--token-file | --name | --url | --init | --from)
			[ $# -gt 1 ] || fail arguments "$1 needs a value" "see install.sh --help"
			case $1 in
			--token-file) token_file=$2 ;;
			--name) name=$2 ;;
			--url) url=$2 ;;
			--init) init=$2 ;;
			--from) from=$2 ;;
			esac
			shift
			;;
		--containerd) containerd=yes ;;
		--no-containerd) containerd=no ;;
		--no-network) network=no ;;
		--yes) yes=yes ;;
		-h | --help) usage 0 ;;
		TL1.*)
			TREELINE_TOKEN=$1
			warn token "other users of this machine can read arguments" "use --token-file FILE, or - for stdin"
			;;
		*)
			[ "$role" = supervise ] || fail arguments "unknown argument \"$1\"" "see install.sh --help"
			daemon=$1
			;;
		esac
		shift
	done
	case $name in *[!a-z0-9-]*) fail arguments "--name \"$name\" is no name of a machine" "use lower-case letters, digits and hyphens" ;; esac
	case $url in *[!A-Za-z0-9.:/-]*) fail arguments "--url \"$url\" is not https://host:port" "for example --url https://192.0.2.1:7443" ;; esac
	case $init in '' | systemd | openrc | none) ;; *) fail arguments "--init \"$init\" is unknown" "use systemd, openrc or none" ;; esac
}

# as_root runs the script again with sudo or doas if it is not root. The token stays on stdin.
as_root() {
	[ "$(id -u)" != 0 ] || return 0
	for with in sudo doas; do
		if has $with && [ -f "$0" ]; then
			[ -z "${TREELINE_TOKEN:-}" ] || [ -n "$token_file" ] || fail rights "TREELINE_TOKEN does not reach the script through $with" "use --token-file FILE, or - for stdin"
			exec $with sh "$0" "$@"
		fi
	done
	fail rights "installing needs root" "run it as root: su -, or install sudo"
}

read_token() {
	token=${TREELINE_TOKEN:-}
	unset TREELINE_TOKEN # the daemons get it on stdin
	case $token_file in
	'') ;;
	-) IFS= read -r token || [ -n "$token" ] || fail token "stdin has no token" "pass the whole line that treeline token create printed" ;;
	*)
		[ -r "$token_file" ] || fail token "$token_file cannot be read" "name the file that has the join token"
		IFS= read -r token <"$token_file" || [ -n "$token" ] || fail token "$token_file is empty" "write the join token into it"
		;;
	esac
}

# Machine

machine() {
	[ "$(uname -s)" = Linux ] || fail system "this is $(uname -s)" "Treeline's daemons need Linux; the CLI runs elsewhere, too"
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail system "no programs for the architecture $(uname -m)" "use a machine with amd64 or arm64" ;;
	esac
	if [ -z "$init" ] && [ -r "$lib/init" ]; then
		read -r init <"$lib/init"
	fi
	if [ -z "$init" ]; then
		if [ -d /run/systemd/system ]; then
			init=systemd
		elif [ -d /run/openrc ] && has rc-service; then
			init=openrc
		else
			init=none
		fi
	fi
	for program in sha256sum sed df mktemp; do
		has $program || fail system "the program $program is missing" "install coreutils or busybox"
	done
}

# lock lets one run at a time change the machine.
lock() {
	mkdir -p "$run" || fail lock "$run cannot be made" "check that /run can be written"
	if ! mkdir "$run/install.lock" 2>/dev/null; then
		other=$(cat "$run/install.lock/pid" 2>/dev/null)
		if [ -n "$other" ] && kill -0 "$other" 2>/dev/null && grep -q install "/proc/$other/cmdline" 2>/dev/null; then
			fail lock "another run of install.sh (process $other) is changing this machine" "wait until it has ended"
		fi
	fi
	echo $$ >"$run/install.lock/pid" || fail lock "$run/install.lock cannot be written" "check that /run has space"
	locked=yes
	# A run that was killed while it joined a cluster has left a daemon.
	other=$(cat "$run/join.pid" 2>/dev/null)
	if [ -n "$other" ] && grep -q -e cluster-orchestrator "/proc/$other/cmdline" 2>/dev/null; then end "$other"; fi
	rm -f "$run/join.pid"
}

# end PID: ends a process and waits until it has ended.
end() {
	kill "$1" 2>/dev/null
	tries=0
	while kill -0 "$1" 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 400 ] || return 1
		sleep 0.1
	done
}

# kib_free DIR: the free KiB of the disk of the directory, or of its first parent that exists.
kib_free() {
	dir=$1
	until [ -d "$dir" ]; do dir=$(dirname "$dir"); done
	df -Pk "$dir" | sed -n '2s/^[^ ]* *[0-9]* *[0-9]* *\([0-9]*\).*/\1/p'
}

# Files

sum_of() { sha256sum "$1" 2>/dev/null | sed 's/ .*//'; }

# entry NAME: prints hash and size of a file of this release.
entry() { printf '%s\n' "$list" | sed -n "s|^\([0-9a-f]*\) \([0-9]*\) $1\$|\1 \2|p"; }

# want NAME TARGET MODE: notes that the target must be the file, unless it already is.
want() {
	found=$(entry "$1")
	[ -n "$found" ] || fail files "this release has no $1" "use a server or a bundle that has the programs for $arch"
	[ ! -f "$2" ] || [ "$(sum_of "$2")" != "${found% *}" ] || return 0
	wanted="$wanted$1$tab$2$tab$3$tab$found
"
	bytes=$((bytes + ${found#* }))
}

# get NAME FILE: copies or downloads a file, and continues one that is incomplete.
get() {
	case $from in
	/*) cp "$from/$1" "$2" || fail files "$from/$1 cannot be copied to $2" "check that the whole bundle is unpacked there, and that the disk has space" ;;
	*)
		if has curl; then
			curl -gfsSk --connect-timeout 10 --speed-limit 1024 --speed-time 60 -C - -o "$2" "$from/install/$1"
		elif has wget; then
			wget -q -c -O "$2" --no-check-certificate "$from/install/$1"
		else
			fail files "neither curl nor wget is installed" "install one of them"
		fi
		;;
	esac
}

# fetch NAME FILE SUM SIZE: get, until the file has the hash.
fetch() {
	tries=0 whole=no # a part may be of another release
	[ -e "$2" ] || whole=yes
	while :; do
		have=$(wc -c 2>/dev/null <"$2" || echo 0)
		if [ "$have" -ge "$4" ]; then
			sum=$(sum_of "$2")
			[ "$sum" != "$3" ] || return 0
			rm -f "$2"
			[ $whole = no ] || fail files "$1 from $from is not the file of this release: its SHA-256 is $sum, want $3" \
				"the programs were replaced since this script was made, or somebody changes them on the way: make a new line with treeline token create"
			whole=yes
		fi
		tries=$((tries + 1))
		get "$1" "$2" && continue
		free=$(kib_free "$lib")
		[ "${free:-1024}" -gt 512 ] || fail disk "the disk of $lib is full" "free $(($4 / 1048576 + 64)) MiB and run this again"
		[ $tries -lt 10 ] || fail files "$1 does not come from $from" "check that this machine reaches it: curl -k $from/install.sh"
		[ $tries -lt 2 ] || sleep $((tries * 2))
	done
}

# bring puts the wanted files into the stage.
bring() {
	[ -n "$wanted" ] || return 0
	free=$(kib_free "$lib") need=$((bytes / 1024 + 65536))
	[ "${free:-0}" -ge $need ] || fail disk "$lib needs $((need / 1024)) MiB, free are $((${free:-0} / 1024)) MiB" "free some space and run this again"
	free=$(kib_free "$state")
	[ "${free:-0}" -ge 32768 ] || fail disk "$state needs 32 MiB, free are $((${free:-0} / 1024)) MiB" "free some space and run this again"
	mkdir -p "$stage" && chmod 700 "$stage" || fail files "$stage cannot be made" "check that /usr/local can be written"
	echo "$wanted" | while IFS=$tab read -r file target mode found; do
		[ -n "$file" ] || continue
		staged=$stage/$(echo "$file" | sed 's|/|+|g')
		fetch "$file" "$staged" "${found% *}" "${found#* }"
		chmod "$mode" "$staged" || fail files "$staged cannot be changed" "check the disk"
	done || exit 1
}

# program NAME: prints the path of a program, which may be in the stage.
program() {
	if [ -x "$stage/linux-$arch+$1" ]; then
		echo "$stage/linux-$arch+$1"
	else
		echo "$lib/linux-$arch/$1"
	fi
}

# place moves the wanted files from the stage to their targets.
place() {
	echo "$wanted" | while IFS=$tab read -r file target mode found; do
		[ -n "$file" ] || continue
		staged=$stage/$(echo "$file" | sed 's|/|+|g')
		# Rename, because a running program cannot be overwritten.
		mkdir -p "$(dirname "$target")" && mv -f "$staged" "$target.new" 2>/dev/null && mv -f "$target.new" "$target" || {
			rm -f "$target.new"
			fail files "$target cannot be written" "check that its disk has space and can be written, and run this again"
		}
	done || exit 1
	mkdir -p "$bin" && for p in $programs; do
		ln -sf "$lib/linux-$arch/$p" "$bin/$p" || fail files "$bin/$p cannot be written" "check that its disk has space and can be written"
	done
	echo "$init" >"$lib/init"
	case $0 in
	"$lib/install.sh") ;;
	*)
		if [ -f "$0" ]; then
			cp "$0" "$lib/install.sh.new" && chmod 755 "$lib/install.sh.new" && mv -f "$lib/install.sh.new" "$lib/install.sh"
		else
			warn uninstall "the script is no file, so that it cannot be kept for uninstall" "keep a copy of it as $lib/install.sh"
		fi
		;;
	esac
	rm -rf "$stage"
}

# Steps

daemons() {
	case $role in
	node) if [ $network = yes ]; then echo net node; else echo node; fi ;;
	*) echo "$role" ;;
	esac
}

program_of() {
	case $1 in
	node) echo node-engine ;;
	net) echo netmanager ;;
	*) echo "$1-orchestrator" ;;
	esac
}

files() {
	wanted='' bytes=0 programs=treeline
	for d in $(daemons); do
		programs="$programs $(program_of "$d")"
	done
	for p in $programs; do
		want "linux-$arch/$p" "$lib/linux-$arch/$p" 755
	done
	if [ "$role" != node ]; then
		# What machines that join will need from here.
		for file in $(printf '%s\n' "$list" | sed -n 's|^[0-9a-f]* [0-9]* \(linux-.*\)|\1|p'); do
			case " $programs " in *" ${file#linux-"$arch"/} "*) ;; *) want "$file" "$lib/$file" 755 ;; esac
		done
	fi
	for d in $(daemons); do
		case $init in
		systemd) want "systemd/treeline-$d.service" "/etc/systemd/system/treeline-$d.service" 644 ;;
		openrc) want "openrc/treeline-$d" "/etc/init.d/treeline-$d" 755 ;;
		esac
		[ -e "$etc/$d.yaml" ] || want "config/$d.yaml" "$etc/$d.yaml" 600
	done
	if [ "$role" = node ]; then
		for file in $(printf '%s\n' "$list" | sed -n 's|^[0-9a-f]* [0-9]* \(images/.*\)|\1|p'); do
			want "$file" "$state/$file" 644
		done
	fi
}

preflight() {
	set -- --for "$role"
	case $from in https://*) set -- "$@" --server "$from" ;; esac
	"$(program treeline)" doctor --machine "$@" || fail machine "this machine lacks what is marked above" "mend it and run this again; nothing is installed"
}

package_manager() {
	if has apt-get; then
		echo apt
	elif has apk; then
		echo apk
	fi
}

# containers installs and starts containerd if it is wanted.
containers() {
	[ "$role" = node ] || return 0
	if [ -S /run/containerd/containerd.sock ]; then
		done_ containerd "runs already"
		return 0
	fi
	if [ -z "$containerd" ] && [ ! -e "$state/node/node.json" ] && (: </dev/tty) 2>/dev/null; then
		printf 'containerd is not running. Install and start it, so that this node runs containers? [Y/n] ' >/dev/tty
		read -r answer </dev/tty
		case $answer in '' | y* | Y*) containerd=yes ;; esac
	fi
	if [ "$containerd" != yes ]; then
		[ -e "$state/node/node.json" ] || warn containerd "it does not run: this node runs plain programs only, from the directories in process.allow" "run this again with --containerd"
		return 0
	fi
	# The package may start containerd, so note first what is there.
	[ -e /var/lib/containerd ] || echo containerd >"$lib/containerd"
	case $init in
	systemd) systemctl is-enabled -q containerd ;;
	openrc) rc-update -q show default | grep -qw containerd ;;
	esac 2>/dev/null || echo "$init" >"$lib/enabled"
	if ! has containerd; then
		case $(package_manager) in
		apt)
			apt_get update >/dev/null 2>&1
			apt_get install containerd || fail containerd "apt-get does not install it" "see the lines above; apt-get install containerd, or --no-containerd"
			;;
		apk)
			apk add -q containerd runc || fail containerd "apk does not install it" "see the lines above; it is in the repository community of /etc/apk/repositories; or --no-containerd"
			[ "$init" != openrc ] || [ -e /etc/init.d/containerd ] || apk add -q containerd-openrc
			;;
		*) fail containerd "this system has neither apt-get nor apk" "install containerd and runc yourself, or use --no-containerd" ;;
		esac
		echo containerd >"$lib/packages"
	fi
	case $init in
	systemd) systemctl enable -q --now containerd ;;
	openrc) rc-update -q add containerd default && rc-service -q containerd start ;;
	none) supervised containerd || start_one containerd ;;
	esac || fail containerd "it does not start" "see its log"
	tries=0
	until [ -S /run/containerd/containerd.sock ]; do
		tries=$((tries + 1))
		[ $tries -lt 300 ] || fail containerd "it does not listen on /run/containerd/containerd.sock" "see its log: journalctl -u containerd, or $logs/containerd.log"
		sleep 0.1
	done
	done_ containerd "runs"
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o=Dpkg::Use-Pty=0 -y --no-install-recommends "$@"; }

# set_env DAEMON KEY VALUE: sets a variable of the daemon's environment; without a value, removes it.
set_env() {
	file=$etc/$1.env
	mkdir -p "$etc" || return 1
	(
		umask 077
		{
			[ ! -r "$file" ] || sed "/^$2=/d" "$file"
			[ -z "$3" ] || echo "$2=$3"
		} >"$file.new"
	) && mv -f "$file.new" "$file" || fail files "$file cannot be written" "check that its disk has space and can be written"
}

configure() {
	[ -z "$name" ] || set_env "$role" TREELINE_NAME "$name"
	[ -z "$url" ] || set_env "$role" TREELINE_URL "$url"
	case $role in
	node)
		if [ $network = yes ]; then
			set_env node TREELINE_NETMANAGER_SOCKET $run/net.sock
		fi
		if printf '%s\n' "$list" | grep -q ' images/'; then
			set_env node TREELINE_CONTAINERD_IMAGE_DIRS $state/images
		fi
		;;
	*)
		if ! id treeline >/dev/null 2>&1; then
			if has useradd; then
				useradd --system --home-dir $state --shell /usr/sbin/nologin treeline
			else
				addgroup -S treeline && adduser -S -D -H -h $state -s /sbin/nologin -G treeline treeline
			fi || fail user "the user treeline cannot be made" "see the lines above"
			echo treeline >$lib/user
		fi
		chgrp treeline "$etc/$role.yaml" && chmod 640 "$etc/$role.yaml"
		mkdir -p "$state/$role" && chown treeline:treeline "$state/$role" && chmod 700 "$state/$role"
		;;
	esac || fail files "$etc and $state cannot be written" "check that their disks have space and can be written"
}

# limited SECONDS COMMAND…: ends the command after a time.
limited() {
	if has timeout; then
		timeout "$@"
	else
		shift
		"$@"
	fi
}

join() {
	case $role in
	root) return 0 ;;
	node) joined=$state/node/node.json ;;
	cluster) joined=$state/cluster/cluster.json ;;
	esac
	if [ -z "$token" ]; then
		[ -e "$joined" ] || fail token "a $role needs a join token" "pass the whole line that treeline token create printed"
		return 0
	fi
	case $role in
	node)
		id=$(printf '%s\n' "$token" | limited 60 "$lib/linux-$arch/node-engine" join --log-level warn --log-format text --config $etc/node.yaml ${name:+--name "$name"} --token-file -) && [ -n "$id" ] ||
			fail join "this machine did not join" "see the lines above"
		;;
	cluster) # it joins when it starts
		if [ ! -e "$joined" ]; then
			printf '%s\n' "$token" | {
				sh -c 'echo $PPID' >"$run/join.pid"
				as_treeline "$bin/cluster-orchestrator --config $etc/cluster.yaml --token-file - ${name:+--name $name} ${url:+--url $url} --listen 127.0.0.1:0 --log-level warn --log-format text"
			} &
			pid=$!
			tries=0
			while kill -0 $pid 2>/dev/null && [ ! -e "$joined" ] && [ $tries -lt 300 ]; do
				tries=$((tries + 1))
				sleep 0.2
			done
			kill $pid 2>/dev/null
			wait $pid 2>/dev/null
			rm -f "$run/join.pid"
			[ -e "$joined" ] || fail join "this machine did not join" "see the lines above"
		fi
		id=$name
		;;
	esac
	done_ joined "${id:-$role}"
}

# as_treeline COMMAND: replaces the shell by the command, as the user treeline. The su of Debian would
# stay between, so that a signal to it would not end the command at once.
as_treeline() {
	if setpriv --help 2>&1 | grep -q -e --init-groups; then
		exec setpriv --reuid treeline --regid treeline --init-groups sh -c "exec $1"
	fi
	exec su -s /bin/sh treeline -c "exec $1"
}

# start starts the daemons, and restarts those that have changed.
start() {
	[ "$init" != systemd ] || systemctl daemon-reload || fail service "systemd does not answer" "see the line above"
	for d in $(daemons); do
		restart=no
		if [ -n "$wanted" ] || [ "$(sum_of "$state/$role/$role.json")" != "$was" ]; then restart=yes; fi
		case $init in
		systemd)
			systemctl enable -q "treeline-$d"
			if [ $restart = yes ]; then systemctl restart --no-block "treeline-$d"; else systemctl start --no-block "treeline-$d"; fi
			;;
		openrc)
			rc-update -q add "treeline-$d" default
			if [ $restart = yes ]; then rc-service -q "treeline-$d" restart; else rc-service -q "treeline-$d" --ifstopped start; fi
			;;
		none)
			! supervised "$d" || [ $restart = no ] || stop_one "$d"
			supervised "$d" || start_one "$d"
			;;
		esac || fail service "treeline-$d does not start" "see its log: $(log_of "$d")"
	done
}

log_of() {
	case $init in
	systemd) echo "journalctl -u treeline-$1" ;;
	*) echo "$logs/$1.log" ;;
	esac
}

confirm() {
	"$lib/linux-$arch/treeline" doctor --machine --for "$role" --wait 60s || fail "$role" "it is installed, but not ready yet" "see $(log_of "$role"); it goes on trying"
	case $init in
	none) warn boot "without a service manager the daemons do not start with the machine" "have it run at boot: $lib/install.sh start" ;;
	esac
	if [ "$role" = root ] && [ -e $state/root/first-sign-in ]; then
		say "  the first administrator signs in with: treeline login --user admin --ca $state/root/ca.pem --code-file $state/root/first-sign-in https://$(cat $state/root/address)"
	fi
}

# Without a service manager

supervised() {
	pid=$(cat "$run/$1.pid" 2>/dev/null) && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && grep -q supervise "/proc/$pid/cmdline" 2>/dev/null
}

start_one() {
	mkdir -p $logs $run || return 1
	if has setsid; then
		setsid sh "$lib/install.sh" supervise "$1" </dev/null >>"$logs/$1.log" 2>&1 &
	else
		sh "$lib/install.sh" supervise "$1" </dev/null >>"$logs/$1.log" 2>&1 &
	fi
	tries=0
	until supervised "$1"; do
		tries=$((tries + 1))
		[ $tries -lt 50 ] || return 1
		sleep 0.1
	done
}

stop_one() {
	supervised "$1" || return 0
	end "$pid" || return 1
	rm -f "$run/$1.pid"
}

# supervise DAEMON: runs the daemon, and starts it again when it ends.
supervise() {
	if [ -r "$etc/$1.env" ]; then
		set -a
		# shellcheck source=/dev/null
		. "$etc/$1.env"
		set +a
	fi
	ulimit -n 1048576 2>/dev/null
	child='' ending=''
	trap 'ending=yes; [ -z "$child" ] || kill "$child"' TERM INT
	echo $$ >"$run/$1.pid"
	while [ -z "$ending" ]; do
		case $1 in
		node) "$bin/node-engine" run --config $etc/node.yaml & ;;
		net) "$bin/netmanager" --config $etc/net.yaml & ;;
		containerd) containerd & ;;
		*) as_treeline "$bin/$1-orchestrator --config $etc/$1.yaml" & ;;
		esac
		child=$!
		rc=129
		while [ $rc -gt 128 ] && kill -0 $child 2>/dev/null; do # a signal ends wait
			wait $child
			rc=$?
		done
		[ "$1" != node ] || [ $rc != 9 ] || break # the node was purged
		[ -n "$ending" ] || sleep 1
	done
	rm -f "$run/$1.pid"
}

# Undoing

installed() {
	for d in node net cluster root; do
		if [ -e "$etc/$d.yaml" ] || [ -e "$state/$d" ] || [ -e "/etc/systemd/system/treeline-$d.service" ] || [ -e "/etc/init.d/treeline-$d" ]; then echo "$d"; fi
	done
}

# remove DAEMON…: stops the daemons and deletes all that they and the script have made.
remove() {
	for d in "$@"; do
		case $init in
		systemd) systemctl disable -q --now "treeline-$d" ;;
		openrc)
			rc-service -q "treeline-$d" --ifstarted stop
			rc-update -q delete "treeline-$d"
			;;
		none) stop_one "$d" ;;
		esac 2>/dev/null
	done
	for d in "$@"; do
		case $d in
		node)
			if [ -e $state/node/node.json ] || [ -e $state/node/purge.json ]; then
				"$(program node-engine)" purge --yes --log-level warn --log-format text --config $etc/node.yaml
				rc=$?
				[ $rc = 0 ] || [ $rc = 9 ] || [ "$yes" = force ] || fail node "its workloads and data are not all deleted" "see the lines above, and run this again"
			fi
			;;
		net)
			[ ! -x "$(program netmanager)" ] || "$(program netmanager)" --remove --log-level warn --log-format text --config $etc/net.yaml ||
				fail net "its devices and rules are not all removed" "see the lines above, and run this again"
			;;
		esac
		[ -n "${fresh:-}" ] && [ "$(sum_of "$etc/$d.yaml")" != "$(entry "config/$d.yaml" | sed 's/ .*//')" ] || rm -f "$etc/$d.yaml"
		rm -f "/etc/systemd/system/treeline-$d.service" "/etc/init.d/treeline-$d" "$bin/$(program_of "$d")" "$etc/$d.env" "$run/$d.pid" "$logs/$d.log"
		rm -rf "/etc/systemd/system/treeline-$d.service.d" "${state:?}/$d"
	done
}

# remove_rest deletes what all roles share.
remove_rest() {
	if [ "$init" = systemd ]; then
		systemctl daemon-reload
		systemctl reset-failed 'treeline-*'
	fi 2>/dev/null
	# Empty control groups of workloads.
	for group in /sys/fs/cgroup/treeline /sys/fs/cgroup/*/treeline; do
		[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
	done
	others=$({
		if has ctr; then ctr namespaces list -q; else ls /run/containerd/io.containerd.runtime.v2.task; fi
	} 2>/dev/null | grep -v '^treeline$')
	[ "$init" != none ] || stop_one containerd
	if [ -r $lib/enabled ] && [ -z "$others" ]; then
		case $init in
		systemd) systemctl disable -q --now containerd ;;
		openrc)
			rc-service -q containerd --ifstarted stop
			rc-update -q delete containerd default
			;;
		esac 2>/dev/null
	fi
	if [ -r $lib/packages ] && [ -z "$others" ]; then
		case $(package_manager) in
		apt) apt_get purge containerd runc >/dev/null ;;
		apk) apk del -q containerd runc ;;
		esac || warn containerd "its packages stay" "remove them: apt-get purge containerd runc, or apk del containerd runc"
	fi
	if [ -r $lib/containerd ] && [ -z "$others" ]; then
		rm -rf /var/lib/containerd /run/containerd
		rmdir /etc/cni/net.d /etc/cni /opt/containerd/bin /opt/containerd/lib /opt/containerd 2>/dev/null
	fi
	if [ -r $lib/user ]; then
		if has userdel; then userdel treeline; else deluser treeline; fi 2>/dev/null
	fi
	rm -f "$bin/treeline"
	rm -rf "${state:?}/images" "${lib:?}" "${logs:?}"
	rmdir $etc $state 2>/dev/null # unless they have files of others
	rm -rf "${run:?}"
	locked=''
}

uninstall() {
	# shellcheck disable=SC2046
	set -- $(installed)
	if [ $# = 0 ] && [ ! -e $lib ]; then
		say "nothing of Treeline is installed"
		return 0
	fi
	if [ -z "$yes" ]; then
		(: </dev/tty) 2>/dev/null || fail uninstall "this deletes $* with all workloads, data, keys and configuration" "add --yes to do it"
		printf 'This deletes %s with all workloads, data, keys and configuration. Continue? [y/N] ' "$*" >/dev/tty
		read -r answer </dev/tty
		case $answer in y* | Y*) ;; *) fail uninstall "cancelled" ;; esac
	fi
	lock
	# First the node, while a cluster on this machine can still confirm that it has left.
	# shellcheck disable=SC2046
	remove $(printf '%s\n' "$@" | grep -x -e node -e net)
	# shellcheck disable=SC2046
	remove $(printf '%s\n' "$@" | grep -x -e cluster -e root)
	remove_rest
	done_ uninstalled "$*"
}

# ended runs when the script ends. A run that failed before the machine had joined is undone.
ended() {
	rc=$?
	trap - EXIT HUP INT TERM
	if [ $rc != 0 ] && [ -n "${fresh:-}" ]; then
		# shellcheck disable=SC2046
		remove $(daemons)
		rm -rf "$stage"
		others=$(installed | grep -v -x -e node -e net) # a configuration of this machine's owner may stay
		[ "$role" = node ] || others=$(installed | grep -v -x "$role")
		[ -n "$others" ] || remove_rest
		say "  nothing of this run is left on the machine" >&2
	fi
	[ -z "${locked:-}" ] || rm -rf "$run/install.lock"
	case $0 in /tmp/tmp.*/install.sh) rm -rf "$(dirname "$0")" ;; esac # where the printed line has put it
	exit $rc
}

install() {
	[ -n "$list" ] || fail files "this copy of install.sh has no list of files" "get it from a root, a cluster or a bundle (treeline bundle)"
	[ -n "$from" ] || from=$(cd "$(dirname "$0")" && pwd)
	read_token
	fresh='' id=''
	lock
	[ -e "$state/$role/$(record)" ] || fresh=yes
	was=$(sum_of "$state/$role/$role.json")
	files
	bring
	if [ -n "$wanted" ]; then done_ programs "$version, $((bytes / 1048576)) MiB verified"; else done_ programs "$version is installed"; fi
	[ -z "$fresh" ] || preflight
	place
	containers
	configure
	join
	fresh=''
	start
	done_ service "$init runs $(daemons | sed 's/[a-z][a-z]*/treeline-&/g')"
	confirm
	done_ "$role" "is ready; to remove it: $lib/install.sh uninstall"
}

# record prints the name of a file that a machine of the role has once it has joined.
record() {
	case $role in
	root) echo ca.pem ;;
	*) echo "$role.json" ;;
	esac
}

main() {
	arguments "$@"
	case $role in
	supervise)
		supervise "$daemon"
		exit
		;;
	esac
	as_root "$@"
	machine
	trap ended EXIT
	trap 'exit 130' INT
	trap 'exit 143' HUP TERM
	case $role in
	uninstall) uninstall ;;
	start | stop)
		[ "$init" = none ] || fail "$role" "$init starts and stops the daemons" "use its own commands"
		[ "$role" = start ] || set -- node net cluster root containerd
		[ "$role" = stop ] || set -- containerd root cluster net node
		for d in "$@"; do
			if [ "$role" = stop ]; then
				stop_one "$d"
			elif [ -e "$etc/$d.yaml" ] || { [ "$d" = containerd ] && [ -e $lib/containerd ]; }; then
				supervised "$d" || start_one "$d"
			fi
		done
		;;
	*) install ;;
	esac
}

main "$@"
