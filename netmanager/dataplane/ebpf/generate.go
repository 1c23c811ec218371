package ebpf

// The objects are committed, so that a build needs no clang. bpf/SUMS has the hashes of their
// sources; a test checks it.
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go@v0.22.0 -cc clang -target bpfel,bpfeb -type settings -type endpoint -type service -type slot -type remote -type pair -type prefix -type network -type peer -type traffic -type counts -type tuple -type flow -type half objects bpf/plane.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-compare-distinct-pointer-types -Wno-address-of-packed-member -I/usr/include/x86_64-linux-gnu
//go:generate sh bpf/split.sh
//go:generate sh -c "sha256sum bpf/*.h bpf/*.c objects_bpfel.o objects_bpfeb.o > bpf/SUMS"
