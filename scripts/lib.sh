# Functions of the scripts: timed output, required packages, and checks of the machine.
# Sourced by bash with set -euo pipefail, from any directory.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
began=${EPOCHREALTIME/[.,]/}

# The linters' versions; nothing else names them.
GOFUMPT=mvdan.cc/gofumpt@v0.12.0
STATICCHECK=honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK=golang.org/x/vuln/cmd/govulncheck@v1.1.4

# Every program that is not in an essential or required package of Debian, as
# PROGRAM:PACKAGE. TestProgramsAreListed compares the list with the programs that the Go
# sources start.
UP_PROGRAMS=(containerd:containerd ctr:containerd runc:runc ip:iproute2 nft:nftables flock:util-linux tar:tar mkfs.ext4:e2fsprogs)
SHOP_PROGRAMS=(redis-check-rdb:redis-tools) # for the example shop
HA_PROGRAMS=(mosquitto:mosquitto)           # for scripts/up --ha
COMPOSE_PROGRAMS=(docker:docker.io dockerd:docker.io docker-compose:docker-compose iptables:iptables
	containerd:containerd runc:runc ip:iproute2 unshare:util-linux debootstrap:debootstrap) # for testbed/compose/run
TEST_PROGRAMS=("${UP_PROGRAMS[@]}" "${SHOP_PROGRAMS[@]}" "${HA_PROGRAMS[@]}" mosquitto_passwd:mosquitto ping:iputils-ping conntrack:conntrack iperf3:iperf3
	ethtool:ethtool tc:iproute2 ss:iproute2 sysctl:procps nsenter:util-linux mount:mount e2fsck:e2fsprogs
	curl:curl git:git systemd-analyze:systemd systemctl:systemd openrc:openrc python3:python3-minimal python3:python3 gcc:gcc as:binutils ld:binutils
	qemu-system-x86_64:qemu-system-x86 docker-registry:docker-registry prometheus:prometheus promtool:prometheus
	busybox:busybox-static chromium:chromium node:nodejs tsc:node-typescript)

# Packages without programs.
TEST_FILES=(/usr/include/stdlib.h:libc6-dev /etc/ssl/certs/ca-certificates.crt:ca-certificates)

# step WHAT: prints the name of a step and its start in seconds since the start of the
# script. If $stages names a file, it is written there too, for stage_times.
step() {
	local us=$((${EPOCHREALTIME/[.,]/} - began))
	[ -z "${stages:-}" ] || printf '%d %s\n' "$us" "$*" >>"$stages"
	printf '[%6d.%ds] %s\n' $((us / 1000000)) $((us % 1000000 / 100000)) "$*"
}

# stage_times: prints the duration of each step in $stages.
stage_times() {
	local now=$((${EPOCHREALTIME/[.,]/} - began))
	awk -v now="$now" '
		function line(us, what) { printf "%7.1fs  %s\n", us / 1000000, what }
		NR > 1 { line($1 - at, what) }
		{ at = $1; what = substr($0, length($1) + 2) }
		END { if (NR) line(now - at, what); line(now, "total") }' "$stages"
}

# note WHAT: prints a line that belongs to the current step.
note() { printf '           %s\n' "$*"; }

# fail WHAT [HOW TO FIX IT...]: prints the error and ends the script.
fail() {
	printf '%s: %s\n' "$(basename "$0")" "$1" >&2
	shift
	[ $# -eq 0 ] || printf '  %s\n' "$@" >&2
	exit 1
}

need_root() {
	[ "$(id -u)" = 0 ] || fail "this needs root: it runs containers" "run it with sudo, or as root"
}

# whole_path: completes PATH with the directories that a user's PATH may lack.
# Within scripts/test the PATH does not change: only_programs made it.
whole_path() {
	[ -n "${TREELINE_TEST_RUN:-}" ] || PATH=$PATH:/usr/sbin:/sbin
}

# packages NAME:PACKAGE...: installs the packages of the programs, or of the files by
# absolute path, that are missing.
packages() {
	local pair missing=()
	whole_path
	for pair in "$@"; do
		present "${pair%%:*}" || [[ " ${missing[*]} " = *" ${pair#*:} "* ]] || missing+=("${pair#*:}")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || fail "missing: ${missing[*]}" "apt-get is missing too: install them by hand, then run this again"
	need_root
	step "install ${missing[*]}"
	install_packages "${missing[@]}" || {
		# A fresh machine has no package lists, an old one has stale ones.
		apt-get -q update >/dev/null || fail "apt-get update failed" "correct the sources in /etc/apt, or install by hand: ${missing[*]}"
		install_packages "${missing[@]}" || {
			cat "$apt_log" >&2
			fail "cannot install ${missing[*]}"
		}
	}
	rm -f "$apt_log"
	for pair in "$@"; do
		present "${pair%%:*}" || fail "${pair%%:*} is missing, although package ${pair#*:} is installed"
	done
}

# present NAME: succeeds if the program, or the file by absolute path, exists.
present() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

# only_programs DIR PROGRAM:PACKAGE...: fills DIR with links to Go, to the programs of
# the packages, and to those of Debian's essential and required packages. With DIR as
# PATH, a program that no script installs is missing on every machine.
only_programs() {
	local dir=$1 pair file named=() base
	shift
	mkdir "$dir"
	for pair in "$@"; do
		named+=("${pair#*:}")
	done
	mapfile -t base < <(dpkg-query -W -f 'x${Essential} ${Priority} ${db:Status-Status} ${Package}\n' |
		awk '($1 == "xyes" || $2 == "required") && $3 == "installed" { print $4 }')
	# A program may come from another package than Debian's; it is linked by name below.
	{ dpkg -L "${base[@]}" "${named[@]}" 2>/dev/null || true; } | sort -u |
		grep -E '^(/usr)?/s?bin/[^/]+$' | while read -r file; do
		[ ! -x "$file" ] || ln -sf "$file" "$dir/${file##*/}"
	done
	for file in /etc/alternatives/*; do
		pair=$(readlink "$file") || continue
		[ "${pair##*/}" = "${file##*/}" ] || [ ! -e "$dir/${pair##*/}" ] || [ -e "$dir/${file##*/}" ] || ln -s "$pair" "$dir/${file##*/}"
	done
	[ -e "$dir/awk" ] || ln -s mawk "$dir/awk" # if the machine's awk is from another package
	for file in go gofmt "${@%%:*}"; do
		[ -e "$dir/$file" ] || ln -s "$(command -v "$file")" "$dir/$file" || fail "$file is not in PATH"
	done
}

apt_log=/dev/null
install_packages() {
	apt_log=$(mktemp)
	DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "$@" >"$apt_log" 2>&1
}

# go_ready: finds Go, or prints which version is required and how to install it.
go_ready() {
	local want have
	want=$(sed -n 's/^go //p' "$top/go.mod")
	command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
	have=$(cd / && go env GOVERSION 2>/dev/null | sed 's/^go//') || true
	if [ -z "$have" ] || [ "$(printf '%s\n' "$want" "${have%%[- ]*}" | sort -V | head -n 1)" != "$want" ]; then
		fail "Go $want or later is required, found ${have:-none}" \
			"install it from https://go.dev/dl/, for example:" \
			"curl -fsSL https://go.dev/dl/go$want.linux-$(dpkg --print-architecture 2>/dev/null || echo amd64).tar.gz | tar -C /usr/local -xz" \
			"export PATH=/usr/local/go/bin:\$PATH"
	fi
}

# end_process PID NAME: ends the process if the pid still belongs to that program.
end_process() {
	local end=$((SECONDS + 60))
	[ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ] || return 0
	kill "$1" 2>/dev/null || return 0
	while [ $SECONDS -lt $end ]; do
		[ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ] || return 0
		sleep 0.1
	done
	kill -9 "$1" 2>/dev/null || true
}
