/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.c - a reason, for the user.
 *
 * OWNS      nothing: the text is the caller's.
 *
 * LOCKING   none: works on its arguments only.
 */
#include <stdarg.h>
#include <stdio.h>

#include "common/why.h"

int kv_why(char **ret_why, int r, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (vasprintf(ret_why, format, args) < 0)
		*ret_why = NULL;
	va_end(args);
	/* Paths and URLs are the user's. */
	for (char *c = *ret_why; c && *c; c++)
		if ((unsigned char)*c < ' ')
			*c = '?';
	return r;
}
