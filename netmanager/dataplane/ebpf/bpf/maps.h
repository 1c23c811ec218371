// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copyright the Treeline authors
//
// The maps. A hash map takes 16 bytes per possible entry in advance; the maps of flows, their
// index, fragments and traffic take all their memory in advance. On a small machine the
// netmanager makes them smaller (load.go).
#pragma once

#include "types.h"

#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} tl_settings SEC(".maps");

#define HASH(name, k, v, max)                                                                                          \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_HASH);                                                                       \
		__uint(max_entries, max);                                                                              \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                                                  \
		__type(key, k);                                                                                        \
		__type(value, v);                                                                                      \
	} name SEC(".maps")

HASH(tl_endpoints, __be32, struct endpoint, 4096);
HASH(tl_devices, __u32, __be32, 4096); // device → endpoint's address
HASH(tl_services, __be32, struct service, 32768);
HASH(tl_slots, struct slot, __be32, 262144);
HASH(tl_backends, __be32, struct remote, 65536);
HASH(tl_sources, __be32, struct remote, 65536);
HASH(tl_ending, __be32, __u32, 4096); // addresses whose flows end; 0: only those without an answer
HASH(tl_allowed, struct pair, __u32, 131072);

#define TRIE(name, k, v, max)                                                                                          \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_LPM_TRIE);                                                                   \
		__uint(max_entries, max);                                                                              \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                                                  \
		__type(key, k);                                                                                        \
		__type(value, v);                                                                                      \
	} name SEC(".maps")

TRIE(tl_peers, struct prefix, struct peer, 65536);
TRIE(tl_closed, struct network, __u32, 4096);
TRIE(tl_open, struct network, __u32, 4096);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct traffic);
} tl_traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} tl_counts SEC(".maps");

// Places for flows, one kind after another: flows without an answer, answered UDP and echo flows,
// answered connections.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 12288);
	__type(key, __u32);
	__type(value, struct flow);
} tl_flows SEC(".maps");

// The index: slots of flows, by the hash of a tuple. There are as many buckets as places of a
// kind, so that three eighths of the slots are in use if every place is.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct bucket);
} tl_index SEC(".maps");

// The number of flows so far that got a place, per kind.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u32);
} tl_turns SEC(".maps");

// A flow that is being made, which does not fit the stack.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} tl_new SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct fragment);
	__type(value, struct ports);
} tl_fragments SEC(".maps");
