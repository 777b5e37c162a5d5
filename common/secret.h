/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - files with a password or a key.
 */
#ifndef KV_COMMON_SECRET_H
#define KV_COMMON_SECRET_H

#include "common/kv.h"

/*
 * Read the file @path into @text, and add a NUL.  Returns the number of bytes, or with a
 * cause for the user (caller frees) -EACCES: it does not belong to this user or root, or
 * others may read it; -EINVAL: not a file, or not shorter than @room; errors of open(2).
 */
int kv_secret_read(const char *path, char *text, size_t room, char **ret_why);

#endif
