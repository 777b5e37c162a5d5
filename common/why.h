/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.h - a reason, for the user.
 */
#ifndef KV_COMMON_WHY_H
#define KV_COMMON_WHY_H

#include "common/kv.h"

/* Put the text to *@ret_why (caller frees; NULL: no memory), as one line:
 * control characters become '?'.  Returns @r. */
int kv_why(char **ret_why, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
