/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name.h - names that can be written: a block's own, `.<key>.<suffix>` beside
 * it (as rsync makes them, to be renamed), `.layout` and `.layout.<suffix>`.
 */
#ifndef KV_FS_MOUNT_NAME_H
#define KV_FS_MOUNT_NAME_H

#include "common/block.h"

enum kv_name_kind {
	KV_NAME_KEY,
	KV_NAME_TEMP,
	KV_NAME_LAYOUT,
	KV_NAME_LAYOUT_TEMP,
};

struct kv_name {
	enum kv_name_kind kind;
	struct kv_key key; /* len 0: a layout */
};

/* @byte: of the two-digit directory, -1: the space's own directory.  -EINVAL:
 * none of the four, or the key belongs in another directory; -ENAMETOOLONG. */
int kv_name_parse(const char *text, int byte, struct kv_name *ret_name);

#endif
