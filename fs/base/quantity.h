/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantity.h - numbers that people type: "64M", "25%", "1000".
 */
#ifndef KV_FS_BASE_QUANTITY_H
#define KV_FS_BASE_QUANTITY_H

#include "common/kv.h"

struct kv_quantity {
	uint64_t value; /* bytes, or 1..100 */
	bool percent;
};

/*
 * Parse digits, followed by at most one of K M G T (powers of 1024) or %.  Returns 0,
 * -EINVAL for any other text (a sign, a blank, a fraction, "MB", no digit) and for a
 * percentage outside 1..100, or -ERANGE above INT64_MAX.
 */
int kv_quantity_parse(const char *text, struct kv_quantity *ret_quantity);

/* Parse as kv_quantity_parse does, but refuse a percentage (-EINVAL). */
int kv_bytes_parse(const char *text, uint64_t *ret_bytes);

/* Parse a number of @base 8 or 10, at most @max.  Returns 0, -EINVAL or -ERANGE. */
int kv_number_parse(const char *text, unsigned base, uint64_t max,
		    uint64_t *ret_number);

/* Parse seconds, at most @max: digits, followed by at most one of s m h d.  Returns 0,
 * -EINVAL or -ERANGE. */
int kv_seconds_parse(const char *text, uint64_t max, uint64_t *ret_seconds);

#endif
