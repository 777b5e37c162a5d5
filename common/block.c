/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the file of a block: its name, its safetensors header, and the token
 * ids in that header.
 *
 * OWNS      nothing that outlives a call.
 *
 * INVARIANTS
 *   (1) kv_block_parse accepts every header that kv_block_header_write makes,
 *       kv_token_ids_parse every text that kv_token_ids_write makes.
 *   (2) No number from a header is used as a size or an offset before it was
 *       bounded.
 *
 * LOCKING   none: no state.
 */
#include <inttypes.h>
#include <stdio.h>
#include <jansson.h>

#include "common/block.h"
#include "common/bytes.h"

#define PREFIX 8 /* bytes of the number before the JSON: its length */
#define METADATA                                                       \
	"{\"__metadata__\":{\"kvfs\":\"%u\",\"key\":\"%s\","           \
	"\"parent\":\"%s\",\"position\":\"%" PRIu32 "\",\"tokens\":\"" \
	"%" PRIu32 "\","
#define METADATA_MAX (sizeof(METADATA "}") + 2 * KV_NAME_MAX + 3 * 10)
/* most JSON values in a header; bounds the memory that parsing takes */
#define VALUES_MAX (1u << 17)
#define DIGITS 10 /* most digits of a number in the JSON */
#define IDS "\"token_ids\":\""
#define EXTRAS "\",\"extras\":\""
#define END "\","

/* A tensor of a file's JSON header; the pointers point into the JSON. */
struct entry {
	const char *name, *dtype;
	const json_t *shape;
	uint64_t begin, end;
};

void kv_key_name(const struct kv_key *key, char *name)
{
	kv_hex(key->b, key->len, name);
}

int kv_key_parse(const char *name, struct kv_key *ret_key)
{
	struct kv_key key = {0};
	size_t digits = strnlen(name, KV_NAME_MAX + 1);

	if (digits != 32 && digits != 64)
		return -EINVAL;
	key.len = (uint8_t)(digits / 2);
	if (kv_unhex(name, key.len, key.b) < 0)
		return -EINVAL;
	*ret_key = key;
	return 0;
}

uint64_t kv_block_header_bytes(const struct kv_layout *layout)
{
	/* the most bytes that kv_token_ids_write writes */
	const uint64_t ids = sizeof(IDS) +
			     (uint64_t)layout->tokens * (DIGITS + 1) +
			     sizeof(EXTRAS) + 2 * KV_EXTRAS_MAX + sizeof(END);

	return kv_round_up(PREFIX + METADATA_MAX + layout->header_len +
				   (layout->token_ids ? ids : 0),
			   KV_PAGE);
}

static bool good_len(uint8_t len)
{
	return len == 16 || len == 32;
}

int kv_block_header_write(const struct kv_layout *layout,
			  const struct kv_key *key, const struct kv_meta *meta,
			  void *header)
{
	char key_name[KV_NAME_MAX + 1], parent_name[KV_NAME_MAX + 1];
	uint64_t bytes = kv_block_header_bytes(layout);
	char *text = (char *)header + PREFIX;
	int n;

	if (!good_len(key->len) ||
	    (meta->parent.len != 0 && !good_len(meta->parent.len)) ||
	    layout->token_ids != !!meta->ids ||
	    (meta->ids && meta->ids->n > layout->tokens))
		return -EINVAL;
	kv_key_name(key, key_name);
	kv_key_name(&meta->parent, parent_name);
	n = snprintf(text, METADATA_MAX, METADATA, KV_BLOCK_FORMAT, key_name,
		     parent_name, meta->position, meta->tokens);
	assert(n > 0 && (size_t)n < METADATA_MAX);
	if (meta->ids)
		n += (int)kv_token_ids_write(meta->ids, text + n);
	n--; /* drop the comma after the last JSON member */
	text[n++] = '}';
	text[n++] = ',';
	memcpy(text + n, layout->header, layout->header_len);
	memset(text + n + layout->header_len, ' ',
	       bytes - PREFIX - (size_t)n - layout->header_len);
	for (int i = 0; i < PREFIX; i++)
		((uint8_t *)header)[i] = (uint8_t)((bytes - PREFIX) >> (8 * i));
	return 0;
}

/* Parse a decimal number as kvfs writes it.  Return its end, or NULL. */
static const char *parse_digits(const char *at, uint32_t *ret_number)
{
	const char *begin = at;
	uint64_t number = 0;

	while (*at >= '0' && *at <= '9' && at - begin < DIGITS)
		number = number * 10 + (uint64_t)(*at++ - '0');
	if (at == begin || number > UINT32_MAX ||
	    (*begin == '0' && at > begin + 1))
		return NULL;
	*ret_number = (uint32_t)number;
	return at;
}

/* Parse a JSON string that holds one number.  -EINVAL. */
static int parse_number(const json_t *json, uint32_t *ret_number)
{
	const char *text = json_string_value(json);
	const char *end = text ? parse_digits(text, ret_number) : NULL;

	return end && !*end ? 0 : -EINVAL;
}

static int parse_metadata(json_t *json, struct kv_meta *meta)
{
	const char *name, *parent;
	json_t *value;

	if (!json)
		return 0;
	if (!json_is_object(json))
		return -EINVAL;
	json_object_foreach(json, name, value) {
		if (!json_is_string(value))
			return -EINVAL;
	}
	parent = json_string_value(json_object_get(json, "parent"));
	if (parent)
		(void)kv_key_parse(parent, &meta->parent);
	if (parse_number(json_object_get(json, "position"), &meta->position) <
	    0)
		meta->position = 0;
	if (parse_number(json_object_get(json, "tokens"), &meta->tokens) < 0)
		meta->tokens = 0;
	return 0;
}

static int parse_entry(const char *name, const json_t *json,
		       struct entry *ret_entry)
{
	const json_t *offsets = json_object_get(json, "data_offsets");
	const json_t *begin = json_array_get(offsets, 0);
	const json_t *end = json_array_get(offsets, 1);
	struct entry entry = {
		.name = name,
		.dtype = json_string_value(json_object_get(json, "dtype")),
		.shape = json_object_get(json, "shape"),
	};
	uint64_t bytes;

	if (json_object_size(json) != 3 || !entry.dtype ||
	    !json_is_array(entry.shape))
		return -EINVAL;
	if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
	    !json_is_integer(end) || json_integer_value(begin) < 0 ||
	    json_integer_value(end) < json_integer_value(begin))
		return -EINVAL;
	entry.begin = (uint64_t)json_integer_value(begin);
	entry.end = (uint64_t)json_integer_value(end);

	/* 0 bytes are valid: safetensors has empty tensors. */
	bytes = kv_dtype_bytes(entry.dtype);
	if (bytes == 0)
		return -EINVAL;
	for (size_t i = 0; i < json_array_size(entry.shape); i++) {
		const json_t *dim = json_array_get(entry.shape, i);
		json_int_t value = json_integer_value(dim);

		if (!json_is_integer(dim) || value < 0 ||
		    __builtin_mul_overflow(bytes, (uint64_t)value, &bytes))
			return -EINVAL;
	}
	if (bytes != entry.end - entry.begin)
		return -EINVAL;
	*ret_entry = entry;
	return 0;
}

static int by_offsets(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

/* Read the tensors in file order; they must tile @ret_payload bytes without hole
 * or overlap. */
static int parse_entries(json_t *json, struct entry *entries, size_t *ret_n,
			 uint64_t *ret_payload)
{
	uint64_t at = 0;
	const char *name;
	json_t *value;
	size_t n = 0;
	int r;

	json_object_foreach(json, name, value) {
		if (strcmp(name, "__metadata__") == 0)
			continue;
		r = parse_entry(name, value, &entries[n++]);
		if (r < 0)
			return r;
	}
	qsort(entries, n, sizeof(*entries), by_offsets);
	for (size_t i = 0; i < n; i++) {
		if (entries[i].begin != at)
			return -EINVAL;
		at = entries[i].end;
	}
	if (at == 0)
		return -EINVAL;
	*ret_n = n;
	*ret_payload = at;
	return 0;
}

static bool has_layout(const struct kv_layout *layout,
		       const struct entry *entries, size_t n)
{
	if (layout->n_tensors != n)
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct kv_tensor *tensor = &layout->tensors[i];
		const json_t *shape = entries[i].shape;

		if (strcmp(tensor->name, entries[i].name) != 0 ||
		    strcmp(tensor->dtype, entries[i].dtype) != 0 ||
		    json_array_size(shape) != tensor->ndim)
			return false;
		for (uint32_t d = 0; d < tensor->ndim; d++)
			if ((uint64_t)json_integer_value(json_array_get(
				    shape, d)) != tensor->shape[d])
				return false;
	}
	return true;
}

/* Parse a copy of the JSON: other processes may write to @head. */
static int load_json(const char *head, size_t len, json_t **ret_json)
{
	_cleanup_(kv_freep) char *text = malloc(len);
	json_error_t error;
	json_t *json;
	size_t values = 0;

	if (!text)
		return -ENOMEM;
	memcpy(text, head, len);
	/* leave out the padding: jansson parses spaces slowly */
	while (len > 0 && text[len - 1] == ' ')
		len--;
	/* Count JSON values: each but the first follows one of these
	 * characters, which are rare in strings. */
	for (size_t i = 0; i < len; i++)
		values += text[i] == ',' || text[i] == '[' || text[i] == '{';
	if (values > VALUES_MAX)
		return -EINVAL;
	json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
	if (!json)
		return kv_json_no_memory(&error) ? -ENOMEM : -EINVAL;
	*ret_json = json;
	return 0;
}

/* Parse the token ids of @metadata.  -ENOENT: there are none. */
static int parse_token_ids(const json_t *metadata,
			   struct kv_token_ids **ret_ids)
{
	const char *ids =
		json_string_value(json_object_get(metadata, "token_ids"));
	const char *extras =
		json_string_value(json_object_get(metadata, "extras"));

	return ids ? kv_token_ids_parse(ids, extras, ret_ids) : -ENOENT;
}

/* Check that the block has as many token ids as tokens; "tokens" may be
 * missing. */
static int check_token_ids(const json_t *metadata,
			   const struct kv_layout *layout, struct kv_meta *meta)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	const json_t *tokens = json_object_get(metadata, "tokens");
	int r = parse_token_ids(metadata, &ids);

	if (r < 0)
		return r == -ENOENT ? -EINVAL : r;
	if (tokens && parse_number(tokens, &meta->tokens) < 0)
		return -EINVAL;
	if (meta->tokens == 0)
		meta->tokens = ids->n;
	return ids->n == meta->tokens && ids->n <= layout->tokens ? 0 : -EINVAL;
}

/* Read the length of the JSON, which follows the prefix. */
static int header_len(const uint8_t *bytes, size_t have, uint64_t *ret_len)
{
	uint64_t len;

	if (have <= PREFIX)
		return -EAGAIN;
	len = 0;
	for (int i = PREFIX - 1; i >= 0; i--)
		len = len << 8 | bytes[i];
	if (bytes[PREFIX] != '{' || len < 2)
		return -EINVAL;
	if (len > KV_HEADER_MAX)
		return -EFBIG;
	if (have - PREFIX < len)
		return -EAGAIN;
	*ret_len = len;
	return 0;
}

int kv_block_parse_token_ids(const void *head, size_t have,
			     struct kv_token_ids **ret_ids)
{
	_cleanup_(json_decrefp) json_t *json = NULL;
	uint64_t len;
	int r = header_len(head, have, &len);

	if (r == 0)
		r = load_json((const char *)head + PREFIX, len, &json);
	return r < 0 ? r
		     : parse_token_ids(json_object_get(json, "__metadata__"),
				       ret_ids);
}

int kv_block_parse(const void *head, size_t have,
		   const struct kv_layout *layout, uint64_t *ret_length,
		   uint64_t *ret_payload, struct kv_meta *ret_meta)
{
	_cleanup_(json_decrefp) json_t *json = NULL;
	_cleanup_(kv_freep) struct entry *entries = NULL;
	struct kv_meta meta = {0};
	uint64_t len, payload = 0;
	json_t *metadata;
	size_t n;
	int r = header_len(head, have, &len);

	if (r == 0)
		r = load_json((const char *)head + PREFIX, len, &json);
	if (r < 0)
		return r;
	metadata = json_object_get(json, "__metadata__");
	r = parse_metadata(metadata, &meta);
	if (r == 0 && layout && layout->token_ids)
		r = check_token_ids(metadata, layout, &meta);
	if (r < 0)
		return r;
	entries = calloc(json_object_size(json) + 1, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	r = parse_entries(json, entries, &n, &payload);
	if (r < 0)
		return r;
	if (layout && !has_layout(layout, entries, n))
		return -EBADMSG;
	*ret_length = PREFIX + len + payload;
	*ret_payload = PREFIX + len;
	*ret_meta = meta;
	return 0;
}

/* ---- token ids ---- */

/* Copy the fields before the ids: other processes may write to @data. */
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
	char *at = stpcpy(text, IDS);

	for (uint32_t i = 0; i < token_ids->n; i++) {
		if (i > 0)
			*at++ = ',';
		at = put_id(at, token_ids->ids[i]);
	}
	if (token_ids->extras_len > 0) {
		at = stpcpy(at, EXTRAS);
		kv_hex(kv_token_ids_extras(token_ids), token_ids->extras_len,
		       at);
		at += (size_t)2 * token_ids->extras_len;
	}
	at = stpcpy(at, END);
	return (size_t)(at - text);
}

int kv_token_ids_parse(const char *ids, const char *extras,
		       struct kv_token_ids **ret_token_ids)
{
	_cleanup_(kv_freep) struct kv_token_ids *token_ids = NULL;
	size_t digits = extras ? strlen(extras) : 0, n = 1;

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
	for (size_t i = 0; i < n; i++) {
		ids = parse_digits(ids, &token_ids->ids[i]);
		if (!ids || *ids++ != (i + 1 < n ? ',' : '\0'))
			return -EINVAL;
	}
	if (extras &&
	    kv_unhex(extras, digits / 2, (uint8_t *)(token_ids->ids + n)) < 0)
		return -EINVAL;
	*ret_token_ids = kv_steal(token_ids);
	return 0;
}
