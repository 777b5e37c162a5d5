/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.h - `kvfs --forget`: blocks that are to be nowhere any more, neither here
 * nor on the backends of the remote tier.
 */
#ifndef KV_FS_FORGET_H
#define KV_FS_FORGET_H

#include <stdbool.h>

/* Whether that is what the command line asks for. */
bool kv_forget_called(int argc, char **argv);

/* Returns the exit status: 0 none of them is anywhere; 1 the command line, or a
 * path, is wrong, or nobody may do that; 3 a backend or a daemon failed, hangs or is
 * gone, or the time was over. */
int kv_forget_main(int argc, char **argv);

#endif
