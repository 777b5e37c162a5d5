/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args.h - kvfs-replay's command line.
 */
#ifndef KV_TOOLS_REPLAY_ARGS_H
#define KV_TOOLS_REPLAY_ARGS_H

#include <stdbool.h>

#include "tools/replay/out.h"
#include "tools/replay/trace.h"

#define KV_ARGS_POLICIES 16
#define KV_ARGS_CAPACITIES 64

struct kv_args {
	const char *policies[KV_ARGS_POLICIES];
	size_t n_policies;
	uint32_t capacities[KV_ARGS_CAPACITIES]; /* ascending, in blocks */
	size_t n_capacities;
	uint64_t bytes, token_bytes; /* a capacity in bytes; 0: none */
	uint32_t block_size;
	enum kv_format format;
	bool bound;
	const char *plot, *mount;
	const char *bench; /* append figures to this file */
	const char *trace; /* bench: NULL if none was given */
	char *words;	   /* the texts of @policies */
};

/* 0; 1: help was asked for, and given; -EINVAL: said on stderr why not. */
int kv_args_parse(int argc, char **argv, struct kv_args *ret_args);
/* What needs the trace: the capacities where none, or bytes, were given. */
void kv_args_settle(struct kv_args *args, const struct kv_trace *trace);
void kv_args_fini(struct kv_args *args);

#endif
