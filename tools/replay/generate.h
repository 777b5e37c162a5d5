/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generate.h - a trace where none is at hand: conversations of some turns over
 * shared system prompts, documents asked about, and long prompts that never
 * come back; the mixture changes halfway.
 */
#ifndef KV_TOOLS_REPLAY_GENERATE_H
#define KV_TOOLS_REPLAY_GENERATE_H

#include "tools/replay/trace.h"

/* The same for the same @seed.  -ENOMEM. */
int kv_trace_generate(uint64_t seed, struct kv_trace **ret_trace);

#endif
