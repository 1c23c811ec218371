# What the scripts share: timed lines, and the checks of a machine. Sourced by
# bash with set -euo pipefail, from any directory.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
began=${EPOCHREALTIME/[.,]/}

# The linters' versions; nothing else names them.
GOFUMPT=mvdan.cc/gofumpt@v0.12.0
STATICCHECK=honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK=golang.org/x/vuln/cmd/govulncheck@v1.1.4

# step WHAT: says what begins, and when, in seconds since the script did.
step() {
	local us=$((${EPOCHREALTIME/[.,]/} - began))
	printf '[%6d.%ds] %s\n' $((us / 1000000)) $((us % 1000000 / 100000)) "$*"
}

# note WHAT: a line that belongs to the step.
note() { printf '           %s\n' "$*"; }

# fail WHAT [HOW TO MEND IT...]: ends the script.
fail() {
	printf '%s: %s\n' "$(basename "$0")" "$1" >&2
	shift
	[ $# -eq 0 ] || printf '  %s\n' "$@" >&2
	exit 1
}

need_root() {
	[ "$(id -u)" = 0 ] || fail "this needs root: it runs containers" "run it with sudo, or as root"
}

# packages PROGRAM:PACKAGE...: installs the packages of the programs that are missing.
packages() {
	local pair missing=()
	PATH=$PATH:/usr/sbin:/sbin
	for pair in "$@"; do
		command -v "${pair%%:*}" >/dev/null || [[ " ${missing[*]} " = *" ${pair#*:} "* ]] || missing+=("${pair#*:}")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || fail "missing: ${missing[*]}" "this is no Debian: install them by hand, then run this again"
	need_root
	step "install ${missing[*]}"
	install_packages "${missing[@]}" || {
		# A fresh machine has no package lists, an old one has stale ones.
		apt-get -q update >/dev/null || fail "apt-get update failed" "mend the sources in /etc/apt, or install by hand: ${missing[*]}"
		install_packages "${missing[@]}" || {
			cat "$apt_log" >&2
			fail "cannot install ${missing[*]}"
		}
	}
	rm -f "$apt_log"
}

apt_log=/dev/null
install_packages() {
	apt_log=$(mktemp)
	DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "$@" >"$apt_log" 2>&1
}

# go_ready: finds Go, or says which one is needed and how to get it.
go_ready() {
	local want have
	want=$(sed -n 's/^go //p' "$top/go.mod")
	command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
	have=$(cd / && go env GOVERSION 2>/dev/null | sed 's/^go//') || true
	if [ -z "$have" ] || [ "$(printf '%s\n' "$want" "${have%%[- ]*}" | sort -V | head -n 1)" != "$want" ]; then
		fail "Go $want or later is needed; here is ${have:-none}" \
			"from https://go.dev/dl/, for example:" \
			"curl -fsSL https://go.dev/dl/go$want.linux-$(dpkg --print-architecture 2>/dev/null || echo amd64).tar.gz | tar -C /usr/local -xz" \
			"export PATH=/usr/local/go/bin:\$PATH"
	fi
}

# end_process PID NAME: ends the process, if the pid is still that program's.
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
