/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - insert the entry of an object into a block's header, and find it again.
 *
 * The entry is the first member of __metadata__, behind its brace, and brings along what
 * the header needs to remain JSON:
 *
 *   there are other members       ENTRY ,
 *   __metadata__ is empty         ENTRY
 *   there is no __metadata__      "__metadata__":{ ENTRY },      behind the first brace
 *
 * The three forms differ in length.  The entry holds the length of the file
 * without the entry, so the number of inserted bytes tells the form.
 *
 * OWNS      nothing that outlives a call.
 *
 * INVARIANTS
 *   (1) Without the bytes that kv_object_parse cuts out, an object of kv_object_head is
 *       the file, byte for byte.
 *   (2) An entry is accepted only in the exact form in which it is written.
 *
 * LOCKING   none: no state.
 */
#include <endian.h>
#include <stdio.h>

#include "cache/remote/backend.h"
#include "common/block.h"
#include "common/bytes.h"

#define PREFIX 8u /* bytes of the number before the JSON */
#define BEFORE "\"__metadata__\":{"
#define AFTER "},"
#define NAME "\"kvfs.object\":"
#define ENTRY_MAX (sizeof(NAME) + 64 + 32 + 20 + 2 * KV_NAME_MAX)
#define DIGEST_DIGITS 32u

static const char *skip_space(const char *at, const char *end)
{
	while (at < end &&
	       (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
		at++;
	return at;
}

/* Return the end of the JSON string that begins at @at, or NULL. */
static const char *skip_string(const char *at, const char *end)
{
	if (at == end || *at != '"')
		return NULL;
	for (at++; at < end && *at != '"'; at++)
		if (*at == '\\' && ++at == end)
			return NULL;
	return at < end ? at + 1 : NULL;
}

/* Return the end of the JSON value that begins at @at, or NULL.  Brackets are counted,
 * not checked: kv_block_parse has accepted the file, or is going to check it. */
static const char *skip_value(const char *at, const char *end)
{
	unsigned depth = 0;

	for (; at < end; at++) {
		if (*at == '"') {
			at = skip_string(at, end);
			if (!at)
				return NULL;
			at--;
		} else if (*at == '{' || *at == '[') {
			depth++;
		} else if (*at == '}' || *at == ']') {
			if (depth == 0)
				return at;
			depth--;
		} else if (*at == ',' && depth == 0) {
			return at;
		}
	}
	return NULL;
}

/*
 * Find the place behind the brace of the header's __metadata__, or, without one, behind
 * the first brace.  *@ret_any: whether members follow there.  -EINVAL: the JSON
 * is no object with members.
 */
static int find_place(const char *text, uint64_t len, const char **ret_at,
		      bool *ret_there, bool *ret_any)
{
	const char *at = text + 1, *end = text + len, *name;

	if (len < 2 || *text != '{')
		return -EINVAL;
	do {
		name = skip_space(at, end);
		at = skip_string(name, end);
		if (!at)
			return -EINVAL;
		/* Writers of headers do not escape the name __metadata__. */
		const bool is =
			at - name == strlen("\"__metadata__\"") &&
			memcmp(name, "\"__metadata__\"", at - name) == 0;

		at = skip_space(at, end);
		if (at == end || *at != ':')
			return -EINVAL;
		at = skip_space(at + 1, end);
		if (is) {
			if (at == end || *at != '{')
				return -EINVAL;
			*ret_at = at + 1;
			at = skip_space(at + 1, end);
			*ret_there = true;
			*ret_any = at < end && *at != '}';
			return at < end ? 0 : -EINVAL;
		}
		at = skip_value(at, end);
		if (!at)
			return -EINVAL;
	} while (*at++ == ',');
	if (at[-1] != '}')
		return -EINVAL;
	*ret_at = text + 1;
	*ret_there = false;
	*ret_any = true;
	return 0;
}

static uint64_t read_prefix(const void *bytes)
{
	uint64_t len;

	memcpy(&len, bytes, PREFIX);
	return le64toh(len);
}

static void write_prefix(void *bytes, uint64_t len)
{
	len = htole64(len);
	memcpy(bytes, &len, PREFIX);
}

/* Write the entry as a member, without a comma.  Returns its length. */
static size_t write_entry(const struct kv_object_entry *entry, char *text)
{
	char digest[DIGEST_DIGITS + 1], key[KV_NAME_MAX + 1];
	char parent[KV_NAME_MAX + 1];

	kv_hex(entry->digest.b, sizeof(entry->digest.b), digest);
	kv_key_name(&entry->key, key);
	kv_key_name(&entry->parent, parent);
	return (size_t)snprintf(text, ENTRY_MAX, NAME "\"1 %s %s %llu %s\"",
				digest, key, (unsigned long long)entry->length,
				entry->parent.len ? parent : "-");
}

/* Parse what write_entry writes, at @text, of @left bytes.  Returns its length, or
 * -EBADMSG. */
static int read_entry(const char *text, uint64_t left,
		      struct kv_object_entry *ret_entry)
{
	char copy[ENTRY_MAX] = "", again[ENTRY_MAX];
	char digest[ENTRY_MAX], key[ENTRY_MAX], parent[ENTRY_MAX];
	struct kv_object_entry entry = {0};
	unsigned long long length;
	char *end;
	size_t n;

	memcpy(copy, text, KV_MIN(left, sizeof(copy) - 1));
	if (strncmp(copy, NAME "\"", sizeof(NAME)) != 0)
		return -EBADMSG;
	end = strchr(copy + sizeof(NAME), '"');
	if (!end)
		return -EBADMSG;
	end[1] = '\0';
	if (sscanf(copy + sizeof(NAME), "1 %[0-9a-f] %[0-9a-f] %19llu %[^\"]",
		   digest, key, &length, parent) != 4 ||
	    strlen(digest) != DIGEST_DIGITS ||
	    kv_unhex(digest, sizeof(entry.digest.b), entry.digest.b) < 0 ||
	    kv_key_parse(key, &entry.key) < 0 ||
	    (strcmp(parent, "-") != 0 &&
	     kv_key_parse(parent, &entry.parent) < 0))
		return -EBADMSG;
	entry.length = length;
	n = write_entry(&entry, again);
	if (n != (size_t)(end + 1 - copy) || memcmp(copy, again, n) != 0)
		return -EBADMSG;
	*ret_entry = entry;
	return (int)n;
}

int kv_object_head(const void *file, uint64_t have,
		   const struct kv_object_entry *entry, uint8_t **ret_head,
		   uint64_t *ret_head_bytes, uint64_t *ret_rest)
{
	const char *text = (const char *)file + PREFIX, *at;
	char inserted[sizeof(BEFORE) + ENTRY_MAX + sizeof(AFTER)] = "";
	char member[ENTRY_MAX];
	uint64_t len, before, n;
	bool there, any;
	uint8_t *head;
	int r;

	if (have < PREFIX)
		return -EINVAL;
	len = read_prefix(file);
	if (len > KV_HEADER_MAX)
		return -EFBIG;
	if (len > have - PREFIX)
		return -EINVAL;
	r = find_place(text, len, &at, &there, &any);
	if (r < 0)
		return r;
	write_entry(entry, member);
	n = (uint64_t)snprintf(inserted, sizeof(inserted), "%s%s%s",
			       there ? "" : BEFORE, member,
			       !there ? AFTER
			       : any  ? ","
				      : "");
	if (len + n > KV_HEADER_MAX)
		return -EFBIG;
	before = (uint64_t)(at - (const char *)file);
	head = malloc(before + n);
	if (!head)
		return -ENOMEM;
	memcpy(head, file, before);
	memcpy(head + before, inserted, n);
	write_prefix(head, len + n);
	*ret_head = head;
	*ret_head_bytes = before + n;
	*ret_rest = before;
	return 0;
}

int kv_object_parse(const uint8_t *data, uint64_t bytes,
		    struct kv_object *ret_object)
{
	const char *text = (const char *)data + PREFIX, *at, *cut, *end, *next;
	struct kv_object_entry entry;
	uint64_t len, member, extra;
	bool there, any;
	int n;

	if (bytes < PREFIX)
		return -EBADMSG;
	len = read_prefix(data);
	if (len > KV_HEADER_MAX || len > bytes - PREFIX ||
	    find_place(text, len, &at, &there, &any) < 0 || !there)
		return -EBADMSG;
	end = text + len;
	n = read_entry(at, (uint64_t)(end - at), &entry);
	if (n < 0)
		return n;
	member = (uint64_t)n;
	if (entry.length > bytes || bytes - entry.length < member)
		return -EBADMSG;
	extra = bytes - entry.length - member;
	cut = at;
	at += member;
	next = skip_space(at, end);
	if (extra == strlen(BEFORE AFTER)) {
		if (cut != text + 1 + strlen(BEFORE) ||
		    memcmp(text + 1, BEFORE, strlen(BEFORE)) != 0 ||
		    (uint64_t)(end - at) < strlen(AFTER) ||
		    memcmp(at, AFTER, strlen(AFTER)) != 0)
			return -EBADMSG;
		cut = text + 1;
	} else if (next == end ||
		   !(extra == 0 ? *next == '}' : extra == 1 && *at == ',')) {
		return -EBADMSG;
	}
	write_prefix(ret_object->prefix, len - member - extra);
	ret_object->entry = entry;
	ret_object->cut = (uint64_t)(cut - (const char *)data);
	ret_object->next = ret_object->cut + member + extra;
	return 0;
}

void kv_object_copy(const struct kv_object *object, const uint8_t *data,
		    uint64_t bytes, struct kv_hash *hash, uint8_t *to)
{
	const uint64_t cut = object->cut, rest = bytes - object->next;
	/* copy whole pages, which is fastest */
	const uint64_t unaligned =
		KV_MIN(kv_round_up(cut, KV_PAGE) - cut, rest);

	kv_hash_copy(hash, to, object->prefix, PREFIX);
	kv_hash_copy(hash, to + PREFIX, data + PREFIX, cut - PREFIX);
	data += object->next;
	to += cut;
	kv_hash_copy(hash, to, data, unaligned);
	kv_hash_copy(hash, to + unaligned, data + unaligned, rest - unaligned);
}
