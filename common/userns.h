/* SPDX-License-Identifier: Apache-2.0 */
/*
 * userns.h - users whom this process cannot tell apart.
 *
 * In a user namespace the kernel shows every user that has no number there as
 * one and the same, the overflow user: root of the machine, and whoever else.
 */
#ifndef KV_COMMON_USERNS_H
#define KV_COMMON_USERNS_H

#include "common/kv.h"

/* Whether @uid, as the kernel gave it, may be any of several users.  Where
 * /proc cannot be read, the overflow user is taken for one who may. */
bool kv_user_is_hidden(uint32_t uid);

/* Whether @text, in the form of /proc/self/uid_map, gives every user a number
 * of its own. */
bool kv_uid_map_is_whole(const char *text);

#endif
