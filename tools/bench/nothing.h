/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nothing.h - a FUSE server of very many files that does nothing.
 */
#ifndef KV_TOOLS_BENCH_NOTHING_H
#define KV_TOOLS_BENCH_NOTHING_H

/* Serve @files files in MOUNTPOINT/million until it is unmounted or SIGTERM
 * comes.  Returns the exit status. */
int kv_bench_nothing(unsigned files, const char *mountpoint);

#endif
