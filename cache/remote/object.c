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

static const char *skip_space(const char *at, const char *end)
{
	while (at < end &&
	       (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
		at++;
	return at;
}

/*
 * Return the place behind the brace of the __metadata__ in the header at @text, or NULL.
 * kv_block_parse has accepted the file, or is going to check it: so the name of a member,
 * before a colon and a brace, is that of __metadata__, unless its first quote is escaped
 * and belongs to a longer name.  Writers of headers do not escape the name __metadata__.
 */
static const char *find_metadata(const char *text, const char *end)
{
	static const char name[] = "\"__metadata__\"";
	const char *at = text, *found;

	while ((found = memmem(at, (size_t)(end - at), name, strlen(name)))) {
		at = skip_space(found + strlen(name), end);
		if (at == end || *at != ':')
			continue;
		at = skip_space(at + 1, end);
		if (at < end && *at == '{' && found > text && found[-1] != '\\')
			return at + 1;
	}
	return NULL;
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
	char digest[2 * sizeof(entry->digest.b) + 1], key[KV_NAME_MAX + 1];
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
	const char *text = (const char *)file + PREFIX, *at, *end, *there;
	char inserted[sizeof(BEFORE) + ENTRY_MAX + sizeof(AFTER)] = "";
	char member[ENTRY_MAX];
	uint64_t len, before, n;
	uint8_t *head;

	if (have < PREFIX)
		return -EINVAL;
	len = read_prefix(file);
	if (len > KV_HEADER_MAX)
		return -EFBIG;
	if (len > have - PREFIX)
		return -EINVAL;
	end = text + len;
	there = find_metadata(text, end);
	at = skip_space(there ? there : text + 1, end);
	if (at >= end || *text != '{')
		return -EINVAL;
	write_entry(entry, member);
	n = (uint64_t)snprintf(inserted, sizeof(inserted), "%s%s%s",
			       there ? "" : BEFORE, member,
			       !there	    ? AFTER
			       : *at == '}' ? ""
					    : ",");
	if (len + n > KV_HEADER_MAX)
		return -EFBIG;
	before = there ? (uint64_t)(there - (const char *)file) : PREFIX + 1;
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
	int n;

	if (bytes < PREFIX)
		return -EBADMSG;
	len = read_prefix(data);
	if (len > KV_HEADER_MAX || len > bytes - PREFIX)
		return -EBADMSG;
	end = text + len;
	at = find_metadata(text, end);
	if (!at)
		return -EBADMSG;
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
