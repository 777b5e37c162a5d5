/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - figures of the eviction policies and the miss curve, as `make
 * bench` prints them.
 */
#ifndef KV_TOOLS_REPLAY_BENCH_H
#define KV_TOOLS_REPLAY_BENCH_H

#include "tools/replay/trace.h"

/*
 * Hit rates on the trace @trace, or a made-up one if that is NULL; nanoseconds
 * for a touch and for a victim, bytes for a block; those of the miss curve for
 * a use. Printed, and appended to the file @path as lines of JSON.  Says on
 * stderr why it failed.
 */
int kv_replay_bench(const char *path, const char *trace, uint32_t block_size);

#endif
