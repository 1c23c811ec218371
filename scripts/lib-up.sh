# Functions of scripts/up and scripts/down. Sourced after lib.sh.

# up_options ARGUMENT...: sets example, ha, state, listen, config and shown_cli.
up_options() {
	example=hello
	ha=
	state=$top/.treeline
	shown_cli=bin/treeline
	while [ $# -gt 0 ]; do
		case $1 in
		--example)
			case ${2-} in
			hello | shop) example=$2 ;;
			*) fail "there is no example \"${2-}\"" "the examples are hello and shop" ;;
			esac
			;;
		--ha)
			ha=1
			shift
			continue
			;;
		--state) [ $# -gt 1 ] || fail "--state needs a directory" && state=$(realpath -m "$2") ;;
		--listen) [ $# -gt 1 ] || fail "--listen needs HOST:PORT" && listen=$2 ;;
		-h | --help)
			sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"
			exit 0
			;;
		*) fail "unknown option $1" "see $0 --help" ;;
		esac
		shift 2
	done
	# bin/treeline looks for this file in the checkout's .treeline only. The user's own
	# contexts are not changed.
	config=(--config "$state/config.yaml")
	[ "$state" = "$top/.treeline" ] || shown_cli="bin/treeline ${config[*]}"
	local tag
	tag=$(printf '%s' "$state" | cksum | cut -d ' ' -f 1)
	run=/run/treeline-$tag
	extra_namespace=treeline-up-$tag # of the additional node
}

# treeline ARGUMENT...: runs the CLI in the installation's context.
treeline() { "$top/bin/treeline" "${config[@]}" --context up "$@"; }

# running: succeeds if this installation's daemons run.
running() {
	local pid
	pid=$(cat "$state/dev.pid" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = treeline ] &&
		tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF "$state/dev"
}

# await_dev PID: prints the progress of treeline dev until everything is up; fails if
# it exits before that.
await_dev() {
	local line up=1
	while IFS= read -r line; do
		case $line in
		*'running; Ctrl-C'*)
			up=0
			break
			;;
		*'s  ('*) note "${line#"${line%%[![:space:]]*}"}" ;;
		esac
	done < <(exec tail -n +1 -f --pid="$1" "$state/dev.log" 9>&-)
	kill $! 2>/dev/null || true
	return $up
}

# note_namespaces: saves the names of the nodes' containerd namespaces, so that
# scripts/down finds them even if no daemon runs any more.
note_namespaces() {
	local p
	for p in /proc/[0-9]*; do
		tr '\0' '\n' <"$p/cmdline" 2>/dev/null | grep -qF "$state/dev/" || continue
		tr '\0' '\n' <"$p/cmdline" | sed -n '/^--containerd-namespace$/{n; p}'
	done 2>/dev/null | sort -u >>"$state/namespaces" || true
	sort -u -o "$state/namespaces" "$state/namespaces"
}

# end_further_nodes: ends node engines that were started by the printed command.
end_further_nodes() {
	local p
	for p in /proc/[0-9]*; do
		if tr '\0' '\n' <"$p/cmdline" 2>/dev/null | grep -qxF "$state/node"; then
			end_process "${p#/proc/}" node-engine
		fi
	done 2>/dev/null
}

# containerd_ready: sets containerd_socket to a containerd that answers: the machine's,
# which is started by systemd if possible, or a separate one of this installation.
containerd_ready() {
	containerd_socket=/run/containerd/containerd.sock
	if [ ! -f "$state/containerd.pid" ]; then
		! containerd_answers || return 0
		if [ -d /run/systemd/system ]; then
			step "start containerd"
			systemctl start containerd || fail "systemd cannot start containerd" "see journalctl -u containerd"
			containerd_comes || fail "containerd does not answer at $containerd_socket" "see journalctl -u containerd"
			return 0
		fi
	fi
	containerd_socket=$run/c.sock # the state directory's path may be too long for a socket
	! containerd_answers || return 0
	step "start a separate containerd"
	install -d -m 711 "$run" "$state/containerd"
	cat >"$state/containerd/config.toml" <<-END
		version = 2
		root = "$state/containerd/root"
		state = "$run/state"
		disabled_plugins = ["io.containerd.grpc.v1.cri"]
		[grpc]
		  address = "$containerd_socket"
	END
	setsid containerd --config "$state/containerd/config.toml" >"$state/containerd/log" 2>&1 </dev/null 9>&- &
	echo $! >"$state/containerd.pid"
	containerd_comes || fail "containerd does not answer at $containerd_socket" "see $state/containerd/log"
}

# containerd_comes: waits until containerd answers, at most a minute, because a busy
# machine may start it slowly.
containerd_comes() {
	local end=$((SECONDS + 60))
	until containerd_answers; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
}

containerd_answers() { [ -S "$containerd_socket" ] && ctr --address "$containerd_socket" --timeout 3s version >/dev/null 2>&1; }

# containerd_end: ends the containerd that containerd_ready started.
containerd_end() {
	[ -f "$state/containerd.pid" ] || return 0
	end_process "$(cat "$state/containerd.pid")" containerd
	unmount_below "$run"
	rm -rf "$run"
}

# clear_namespace NAME: removes a namespace of containerd and everything in it.
clear_namespace() {
	local c=(ctr --address "$containerd_socket" -n "$1") x
	for x in $("${c[@]}" tasks ls -q 2>/dev/null); do
		"${c[@]}" tasks kill -s SIGKILL -a "$x" >/dev/null 2>&1 || true
		"${c[@]}" tasks delete -f "$x" >/dev/null 2>&1 || true
	done
	for x in $("${c[@]}" containers ls -q 2>/dev/null); do
		"${c[@]}" containers delete "$x" >/dev/null 2>&1 || true
	done
	end_shims "$1"
	# A layer can be removed only after those above it, and the list is not in this order.
	for _ in 1 2 3 4 5 6 7 8; do
		x=$("${c[@]}" snapshots ls 2>/dev/null | awk 'NR > 1 { print $1 }')
		[ -n "$x" ] || break
		xargs -n 1 "${c[@]}" snapshots rm >/dev/null 2>&1 <<<"$x" || true
	done
	for x in $("${c[@]}" images ls -q 2>/dev/null); do
		"${c[@]}" images rm --sync "$x" >/dev/null 2>&1 || true
	done
	for x in $("${c[@]}" leases ls -q 2>/dev/null); do
		"${c[@]}" leases rm "$x" >/dev/null 2>&1 || true
	done
	for x in $("${c[@]}" content ls -q 2>/dev/null); do
		"${c[@]}" content rm "$x" >/dev/null 2>&1 || true
	done
	ctr --address "$containerd_socket" namespaces rm "$1" >/dev/null 2>&1 ||
		! ctr --address "$containerd_socket" namespaces ls -q | grep -qxF "$1" ||
		note "containerd cannot remove the namespace $1: it is not empty"
	# One hierarchy of control groups, or one for each controller.
	for x in /sys/fs/cgroup/treeline/"$1" /sys/fs/cgroup/*/treeline/"$1"; do
		find "$x" -depth -type d -exec rmdir {} \; 2>/dev/null || true
	done
}

# end_shims NAMESPACE: ends the shims of a namespace of containerd, which must have no containers. A shim
# that containerd started for a task that it could not create is not in its list.
end_shims() {
	local file p comm args
	for file in $(grep -lzxsF -- "$1" /proc/[0-9]*/cmdline); do
		p=${file%/cmdline}
		read -r comm 2>/dev/null <"$p/comm" || continue
		args=$(tr '\0' ' ' 2>/dev/null <"$file") || continue
		case "$comm $args" in
		containerd-shim*" -namespace $1 "*" -address $containerd_socket "*) kill -9 "${p#/proc/}" 2>/dev/null || true ;;
		esac
	done
}

# unmount_below DIR: unmounts everything below DIR, deepest first.
unmount_below() {
	local m
	for m in $(awk -v d="$1/" 'index($2, d) == 1 { print $2 }' /proc/self/mounts | sort -r); do
		umount -l "$m" 2>/dev/null || true
	done
}

# example_images NAME: builds the images of an example into $state/images, where the nodes find them.
example_images() {
	install -d -m 755 "$state/images"
	case $1 in
	hello)
		step "build the image treeline.local/hello:1 from testbed/workload"
		oci_image hello.tar -ref treeline.local/hello:1 ./testbed/workload
		;;
	shop)
		step "build the images treeline.local/shop:1 from testbed/shop, and treeline.local/shop-db:1 with Redis"
		oci_image shop.tar -ref treeline.local/shop:1 ./testbed/shop
		oci_image shop-db.tar -ref treeline.local/shop-db:1 -program "$(command -v redis-check-rdb)" ./testbed/shop
		;;
	esac
}

# oci_image ARCHIVE ARGUMENT...: replaces the archive at once, because a node may be reading it.
oci_image() {
	local archive=$state/images/$1
	shift
	(cd "$top" && go run ./testbed/ociimage -o "$archive.new" "$@")
	mv "$archive.new" "$archive"
}

# apply_hello: applies the example, waits until each front answers, and sets urls to lines of "name url".
apply_hello() {
	cp "$top/deploy/examples/hello.yaml" "$state/hello.yaml"
	step "apply deploy/examples/hello.yaml"
	treeline apply -f "$state/hello.yaml" --timeout 90s >/dev/null
	treeline wait hello --timeout 90s

	step "check that each front answers and reaches a back"
	local fronts
	fronts=$(treeline get instances hello -o name | grep -c '\.front\.demo#')
	urls=$(front_urls "$fronts")
	[ "$(grep -c . <<<"$urls")" = "$fronts" ] || fail "expected an answer from each of $fronts fronts and its back within a minute, got:" "$urls" "treeline logs hello" "treeline net trace hello/front#0 back"
}

# apply_shop: creates the secret, applies the example, orders something, and sets urls.
apply_shop() {
	go_ready
	example_images shop
	if ! treeline describe secret shop >/dev/null 2>&1; then
		step "create the secret shop with a random password"
		od -An -N16 -tx1 /dev/urandom | tr -d ' \n' | treeline create secret shop --from-file password=- >/dev/null
	fi
	step "apply deploy/examples/shop/shop.yaml"
	treeline apply -f "$top/deploy/examples/shop/shop.yaml" --timeout 120s >/dev/null
	treeline wait shop --timeout 120s

	step "order apples"
	local end=$((SECONDS + 60)) host reply= port
	port=$(sed -n 's/.*port: "\([0-9]*\):.*/\1/p' "$top/deploy/examples/shop/shop.yaml")
	urls=
	while [ -z "$urls" ]; do
		for host in $(node_hosts); do
			reply=$(http_request "$host" "$port" 'POST /orders HTTP/1.0\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 11\r\n\r\nitem=apples') || continue
			case $reply in
			*' 201 '*) urls+="shop/web http://$host:$port/"$'\n' ;;
			esac
		done
		[ -n "$urls" ] || [ $SECONDS -lt $end ] || fail "the shop took no order within a minute; it said: $reply" "treeline logs shop" "treeline why shop/db#0"
		[ -n "$urls" ] || sleep 0.2
	done
	urls=${urls%$'\n'}
}

# example_commands: prints commands to try next.
example_commands() {
	case $example in
	hello) echo "${shown_cli} why hello/front#0    ${shown_cli} logs hello -f    ${shown_cli} net trace hello/front#0 back" ;;
	shop) echo "${shown_cli} get volumes    ${shown_cli} why shop/db#0    ${shown_cli} describe instance shop/report#0" ;;
	esac
}

# node_hosts: prints the addresses of the nodes' network namespaces.
node_hosts() { awk '$2 == "net" && NF == 5 { a[$1] = $4 } END { for (n in a) print a[n] }' "$state/dev.log"; }

# http_request HOST PORT REQUEST: sends an HTTP/1.0 request, in printf's notation, and prints the answer.
http_request() {
	# shellcheck disable=SC2059 # the request is a format without arguments
	{ { printf "$3" >&3 && timeout 6 cat <&3; } 3<>"/dev/tcp/$1/$2"; } 2>/dev/null
}

# front_urls COUNT: requests the published port of fronts from every node, until COUNT
# fronts have answered with their name and the name of the back that they called, at most
# a minute; prints lines of "name url".
front_urls() {
	local port host reply found= end=$((SECONDS + 60))
	port=$(sed -n 's/.*port: "\([0-9]*\):.*/\1/p' "$state/hello.yaml")
	while [ $SECONDS -lt $end ]; do
		for host in $(node_hosts); do
			reply=$(http_request "$host" "$port" 'GET / HTTP/1.0\r\n\r\n') || continue
			case $reply in
			*'.front.demo#'*'"asked":{'*'.back.'*)
				reply=${reply#*.front.demo#}
				found+="hello/front#${reply%%\"*} http://$host:$port/"$'\n'
				;;
			esac
		done
		found=$(sort -u <<<"$found" | sed '/^$/d')$'\n'
		[ "$(grep -c . <<<"$found")" -lt "$1" ] || break
		sleep 0.1
	done
	printf '%s' "$found"
}

# release_forwarding TAG: restores the machine's IPv4 forwarding, unless another
# installation needs it. cli/dev/forwarding.go knows the same files.
release_forwarding() {
	local dir=/run/treeline-dev
	[ -d "$dir" ] || return 0
	(
		flock 8
		rm -f "$dir/forwarding-for-$1"
		if [ -z "$(find "$dir" -name 'forwarding-for-*')" ] && [ -f "$dir/forwarding-was" ]; then
			cat "$dir/forwarding-was" >/proc/sys/net/ipv4/ip_forward
			rm "$dir/forwarding-was"
		fi
	) 8>"$dir/lock"
}

# hosts_end: removes the nodes' network namespaces and the bridge between them.
hosts_end() {
	local kind what
	[ -f "$state/dev/network" ] || return 0
	while read -r kind what; do
		case $kind in
		netns) [ ! -e "/run/netns/$what" ] || ip netns delete "$what" ;;
		link) ip link delete "$what" 2>/dev/null || true ;;
		table) nft delete table ip "$what" 2>/dev/null || true ;;
		forwarding) release_forwarding "$what" ;;
		esac
	done <"$state/dev/network"
	rm -f "$state/dev/network"
}
