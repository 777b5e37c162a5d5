/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.h - a trace against a live mount, through libkvfs.
 */
#ifndef KV_TOOLS_REPLAY_LIVE_H
#define KV_TOOLS_REPLAY_LIVE_H

#include "tools/replay/trace.h"

struct kv_live_result {
	uint64_t hits;
	uint32_t blocks; /* in DRAM at the end */
	char policy[32]; /* the mount's */
	const char *why; /* it failed, where errno says too little */
};

/*
 * Each request matches, acquires what is there and checks its bytes, saves the
 * rest, and gives its blocks back.  In a space of its own, which is emptied
 * before and after.  Why it failed.
 */
int kv_live_run(const char *path, const struct kv_trace *trace,
		struct kv_live_result *ret_result);

#endif
