/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantity.c - numbers as people type them.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: no shared state.
 */
#include "fs/base/quantity.h"

/* Parse digits; strtoull(3) would also take blanks and signs before them. */
static int digits(const char *text, unsigned base, uint64_t *ret_number,
		  char **ret_rest)
{
	if (*text < '0' || *text >= (char)('0' + base))
		return -EINVAL;
	errno = 0;
	*ret_number = strtoull(text, ret_rest, (int)base);
	return -errno;
}

int kv_quantity_parse(const char *text, struct kv_quantity *ret_quantity)
{
	struct kv_quantity q = {0};
	static const char units[] = "KMGT";
	const char *unit;
	char *rest;
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
	char *rest;
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

int kv_seconds_parse(const char *text, uint64_t max, uint64_t *ret_seconds)
{
	uint64_t n, unit = 1;
	char *rest;
	int r;

	r = digits(text, 10, &n, &rest);
	if (r < 0)
		return r;
	if (*rest != '\0') {
		unit = *rest == 's'   ? 1
		       : *rest == 'm' ? 60
		       : *rest == 'h' ? 3600
		       : *rest == 'd' ? 86400
				      : 0;
		rest++;
	}
	if (!unit || *rest != '\0')
		return -EINVAL;
	if (n > max / unit)
		return -ERANGE;
	*ret_seconds = n * unit;
	return 0;
}
