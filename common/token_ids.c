/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_ids.c - what a block's tokens are, as text and back.
 *
 * OWNS      nothing that outlives a call, but what it returns.
 *
 * INVARIANTS
 *   (1) What kv_token_ids_write makes, kv_token_ids_parse takes.
 *   (2) No number that was read is a size before it is bounded.
 *
 * LOCKING   none: no state.
 */
#include "common/token_ids.h"

#include <inttypes.h>
#include <stdio.h>

#define IDS "\"token_ids\":\""
#define EXTRAS "\",\"extras\":\""
#define END "\","
#define DIGITS 10 /* of an id, at most */

/* The first bytes are looked at once: they may change meanwhile. */
static long read_head(const void *data, size_t bytes,
		      struct kv_token_ids *ret_head)
{
	uint64_t whole;

	if (bytes < sizeof(*ret_head))
		return -EINVAL;
	memcpy(ret_head, data, sizeof(*ret_head));
	if (ret_head->n == 0 || ret_head->n > KV_TOKEN_IDS_MAX ||
	    ret_head->extras_len > KV_EXTRAS_MAX)
		return -EINVAL;
	whole = kv_token_ids_bytes(ret_head->n, ret_head->extras_len);
	return whole <= bytes ? (long)whole : -EINVAL;
}

long kv_token_ids_check(const void *data, size_t bytes)
{
	struct kv_token_ids head;

	return read_head(data, bytes, &head);
}

int kv_token_ids_copy(const void *data, size_t bytes,
		      struct kv_token_ids **ret_copy)
{
	struct kv_token_ids head, *copy;
	long whole = read_head(data, bytes, &head);

	if (whole < 0)
		return (int)whole;
	copy = malloc((size_t)whole);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, data, (size_t)whole);
	copy->n = head.n;
	copy->extras_len = head.extras_len;
	*ret_copy = copy;
	return 0;
}

size_t kv_token_ids_text_max(uint32_t n)
{
	return sizeof(IDS) + (size_t)n * (DIGITS + 1) + sizeof(EXTRAS) +
	       2 * KV_EXTRAS_MAX + sizeof(END);
}

static char *put_id(char *at, uint32_t id)
{
	char digits[DIGITS];
	int n = 0;

	do
		digits[n++] = (char)('0' + id % 10);
	while ((id /= 10) > 0);
	while (n > 0)
		*at++ = digits[--n];
	return at;
}

size_t kv_token_ids_write(const struct kv_token_ids *token_ids, char *text)
{
	static const char hex[] = "0123456789abcdef";
	const uint8_t *extras = kv_token_ids_extras(token_ids);
	char *at = stpcpy(text, IDS);

	for (uint32_t i = 0; i < token_ids->n; i++) {
		if (i > 0)
			*at++ = ',';
		at = put_id(at, token_ids->ids[i]);
	}
	if (token_ids->extras_len > 0)
		at = stpcpy(at, EXTRAS);
	for (uint32_t i = 0; i < token_ids->extras_len; i++) {
		*at++ = hex[extras[i] >> 4];
		*at++ = hex[extras[i] & 15];
	}
	at = stpcpy(at, END);
	return (size_t)(at - text);
}

/* One number, as put_id writes it; where it ends, or NULL. */
static const char *parse_id(const char *at, uint32_t *ret_id)
{
	const char *begin = at;
	uint64_t id = 0;

	while (*at >= '0' && *at <= '9' && at - begin < DIGITS)
		id = id * 10 + (uint64_t)(*at++ - '0');
	if (at == begin || id > UINT32_MAX || (*begin == '0' && at > begin + 1))
		return NULL;
	*ret_id = (uint32_t)id;
	return at;
}

static int parse_ids(const char *at, uint32_t n, uint32_t *ids)
{
	for (uint32_t i = 0; i < n; i++) {
		at = parse_id(at, &ids[i]);
		if (!at || *at != (i + 1 < n ? ',' : '\0'))
			return -EINVAL;
		at++;
	}
	return 0;
}

static int nibble(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static int parse_extras(const char *text, uint32_t len, uint8_t *extras)
{
	for (uint32_t i = 0; i < len; i++) {
		int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		extras[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

int kv_token_ids_parse(const char *ids, const char *extras,
		       struct kv_token_ids **ret_token_ids)
{
	_cleanup_(kv_freep) struct kv_token_ids *token_ids = NULL;
	size_t digits = extras ? strlen(extras) : 0, n = 1;
	int r;

	for (const char *at = ids; *at; at++)
		n += *at == ',';
	if (n > KV_TOKEN_IDS_MAX || digits % 2 || digits > 2 * KV_EXTRAS_MAX)
		return -EINVAL;
	token_ids =
		malloc(kv_token_ids_bytes((uint32_t)n, (uint32_t)(digits / 2)));
	if (!token_ids)
		return -ENOMEM;
	token_ids->n = (uint32_t)n;
	token_ids->extras_len = (uint32_t)(digits / 2);
	r = parse_ids(ids, token_ids->n, token_ids->ids);
	if (r == 0 && extras)
		r = parse_extras(extras, token_ids->extras_len,
				 (uint8_t *)(token_ids->ids + n));
	if (r < 0)
		return r;
	*ret_token_ids = kv_steal(token_ids);
	return 0;
}
