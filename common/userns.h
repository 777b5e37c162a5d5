/* SPDX-License-Identifier: Apache-2.0 */
/*
 * userns.h - users that this process cannot tell apart.
 *
 * In a user namespace the kernel shows every user without a number there as the
 * overflow user, among them root of the machine.
 */
#ifndef KV_COMMON_USERNS_H
#define KV_COMMON_USERNS_H

#include "common/kv.h"

/* Return whether @uid, as the kernel reports it, may be any of several users.  If
 * /proc cannot be read, the overflow user may. */
bool kv_user_is_hidden(uint32_t uid);

/* Return whether @text, in the form of /proc/self/uid_map, maps every user. */
bool kv_uid_map_is_whole(const char *text);

#endif
