/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - figures of the eviction policies and the miss curve, as `make
 * bench` prints them.
 */
#ifndef KV_TOOLS_REPLAY_BENCH_H
#define KV_TOOLS_REPLAY_BENCH_H

#include "tools/replay/args.h"

/* Hit rates on args->trace, or a generated one; nanoseconds for a touch and for
 * a victim, bytes for a block; those of the miss curve for a use.  Printed, and
 * appended to the file args->bench as lines of JSON.  Says on stderr why it
 * failed. */
int kv_replay_bench(const struct kv_args *args);

#endif
