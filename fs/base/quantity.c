/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantity.c - numbers as people type them.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: no shared state.
 */
#include "fs/base/quantity.h"

/* Parse digits.  strtoull(3) would also take blanks, signs and any text after the
 * digits. */
static int digits(const char *text, unsigned base, uint64_t *ret_number,
		  const char **ret_rest)
{
	uint64_t n = 0;
	const char *p = text;

	for (; *p >= '0' && *p < (char)('0' + base); p++)
		if (__builtin_mul_overflow(n, base, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
			return -ERANGE;
	if (p == text)
		return -EINVAL;
	*ret_number = n;
	*ret_rest = p;
	return 0;
}

int kv_quantity_parse(const char *text, struct kv_quantity *ret_quantity)
{
	struct kv_quantity q = {0};
	static const char units[] = "KMGT";
	const char *rest, *unit;
	int r, shift = 0;

	r = digits(text, 10, &q.value, &rest);
	if (r < 0)
		return r;
	if (*rest == '%') {
		q.percent = true;
		rest++;
	} else if (*rest != '\0') {
		unit = strchr(units, *rest++);
		shift = unit ? 10 * (int)(unit - units + 1) : -1;
	}
	if (shift < 0 || *rest != '\0')
		return -EINVAL;
	if (q.percent && (q.value < 1 || q.value > 100))
		return -EINVAL;
	if (q.value > (uint64_t)INT64_MAX >> shift)
		return -ERANGE;
	q.value <<= shift;
	*ret_quantity = q;
	return 0;
}

int kv_bytes_parse(const char *text, uint64_t *ret_bytes)
{
	struct kv_quantity q;
	int r;

	r = kv_quantity_parse(text, &q);
	if (r < 0)
		return r;
	if (q.percent)
		return -EINVAL;
	*ret_bytes = q.value;
	return 0;
}

int kv_number_parse(const char *text, unsigned base, uint64_t max,
		    uint64_t *ret_number)
{
	uint64_t n;
	const char *rest;
	int r;

	r = digits(text, base, &n, &rest);
	if (r < 0)
		return r;
	if (*rest != '\0')
		return -EINVAL;
	if (n > max)
		return -ERANGE;
	*ret_number = n;
	return 0;
}
