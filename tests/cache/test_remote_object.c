/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_object.c - an object is the file of a block with one more entry
 * in its header; the entry is found and removed again, and the file is the same
 * byte for byte.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>
#include <jansson.h>

#include "cache/remote/backend.h"
#include "common/block.h"
#include "common/bytes.h"
#include "common/copy.h"
#include "common/layout.h"

#define PAYLOAD "payload bytes"

struct file {
	uint8_t *data;
	uint64_t bytes;
};

static struct file file_of(const char *header, uint64_t len, const void *rest,
			   uint64_t n)
{
	struct file file = {malloc(8 + len + n), 8 + len + n};

	for (unsigned i = 0; i < 8; i++)
		file.data[i] = (uint8_t)(len >> (8 * i));
	memcpy(file.data + 8, header, len);
	memcpy(file.data + 8 + len, rest, n);
	return file;
}

static struct file small_file(const char *header)
{
	return file_of(header, strlen(header), PAYLOAD, strlen(PAYLOAD));
}

static struct kv_object_entry entry_of(const struct file *file, bool parent)
{
	struct kv_object_entry entry = {
		.key = {.len = 32, .b = "the key of a block"},
		.length = file->bytes,
		.digest = kv_digest_of(file->data, file->bytes),
	};

	if (parent)
		entry.parent = (struct kv_key){.len = 16, .b = "its parent"};
	return entry;
}

/* Make the object of @file: the file with @entry in its header.  Return the
 * result of kv_object_head. */
static int object_of(const struct file *file,
		     const struct kv_object_entry *entry, struct file *ret)
{
	uint8_t *head = NULL;
	uint64_t n = 0, rest = 0;
	int r = kv_object_head(file->data, file->bytes, entry, &head, &n,
			       &rest);

	if (r < 0)
		return r;
	ret->bytes = n + file->bytes - rest;
	ret->data = malloc(ret->bytes);
	memcpy(ret->data, head, n);
	memcpy(ret->data + n, file->data + rest, file->bytes - rest);
	free(head);
	return 0;
}

/* Restore the file from @object, and get @entry.  The copy has the exact
 * size, so that a sanitizer finds reads beyond its end. */
static int file_out_of(const struct file *object, struct kv_object_entry *entry,
		       struct file *ret)
{
	uint8_t *exact = malloc(object->bytes ? object->bytes : 1);
	struct kv_object found;
	uint64_t cut, next;
	int r;

	memcpy(exact, object->data, object->bytes);
	r = kv_object_parse(exact, object->bytes, &found);
	if (r == 0) {
		*entry = found.entry;
		cut = found.cut;
		next = found.next;
		assert_true(cut >= 8 && cut < next && next <= object->bytes);
		ret->bytes = cut + object->bytes - next;
		assert_int_equal(ret->bytes, entry->length);
		ret->data = malloc(ret->bytes);
		memcpy(ret->data, found.prefix, 8);
		memcpy(ret->data + 8, exact + 8, cut - 8);
		memcpy(ret->data + cut, exact + next, object->bytes - next);
	} else {
		assert_int_equal(r, -EBADMSG);
	}
	free(exact);
	return r;
}

static void must_return(const struct file *file, bool parent)
{
	const struct kv_object_entry entry = entry_of(file, parent);
	struct kv_object_entry found = {0};
	struct file object, again;

	assert_int_equal(object_of(file, &entry, &object), 0);
	assert_true(object.bytes > file->bytes);
	assert_int_equal(file_out_of(&object, &found, &again), 0);
	assert_int_equal(again.bytes, file->bytes);
	assert_memory_equal(again.data, file->data, file->bytes);
	assert_true(kv_key_equal(&found.key, &entry.key));
	assert_true(kv_key_equal(&found.parent, &entry.parent));
	assert_memory_equal(&found.digest, &entry.digest, sizeof(entry.digest));
	free(object.data);
	free(again.data);
}

/* Make the object of a file with @header; return the object's header as
 * JSON, and the entry's text. */
static json_t *json_of(const char *header, char text[200])
{
	const struct file file = small_file(header);
	const struct kv_object_entry entry = entry_of(&file, true);
	struct file object;
	json_t *json;
	uint64_t len = 0;

	assert_int_equal(object_of(&file, &entry, &object), 0);
	for (unsigned i = 8; i-- > 0;)
		len = len << 8 | object.data[i];
	assert_true(8 + len + strlen(PAYLOAD) == object.bytes);
	json = json_loadb((char *)object.data + 8, len, JSON_REJECT_DUPLICATES,
			  NULL);
	assert_non_null(json);
	snprintf(
		text, 200, "%s",
		json_string_value(json_object_get(
			json_object_get(json, "__metadata__"), "kvfs.object")));
	free(object.data);
	free(file.data);
	return json;
}

#define TENSOR "{\"dtype\":\"U8\",\"shape\":[13],\"data_offsets\":[0,13]}"

static const char *const headers[] = {
	/* Headers whose __metadata__ is first, last, in between, empty or
	 * absent. */
	"{\"__metadata__\":{\"a\":\"b\"},\"k\":" TENSOR "}",
	"{\"k\":" TENSOR ",\"__metadata__\":{\"a\":\"b\",\"c\":\"d\"}}",
	"{\"k\":" TENSOR ",\"__metadata__\":{\"a\":\"b\"},\"l\":" TENSOR "}",
	"{\"__metadata__\":{},\"k\":" TENSOR "}",
	"{\"k\":" TENSOR ",\"__metadata__\":{}}",
	"{\"k\":" TENSOR "}",
	"{\"__metadata__\":{}}",
	/* Headers with white space. */
	"{ \n\t\"k\" :\r " TENSOR " , \"__metadata__\"\n: { \"a\" : \"b\" } } ",
	"{\"__metadata__\": { } ,\"k\":" TENSOR "}        ",
	"{ \"k\" : " TENSOR " }\n",
	/* Headers with escapes, and with names that only resemble
	 * "__metadata__". */
	"{\"k\\\"__metadata__\":" TENSOR ",\"__metadata__\":{\"{\":\"}\"}}",
	"{\"__metadata__x\":" TENSOR ",\"x__metadata__\":" TENSOR "}",
	"{\"__metadata_\":" TENSOR ",\"\\u015f_metadata__\":" TENSOR "}",
	"{\"k,\\\"__metadata__\":" TENSOR ",\"l\":" TENSOR "}",
	"{\"k\":\"__metadata__\",\"l\":[\"__metadata__\"],\"m\":" TENSOR "}",
	"{\"k\\\"__metadata__\":{\"a\":\"]},{[\\\\\"},\"l\":" TENSOR "}",
	"{\"\":" TENSOR ",\"\\\\\":[[],{},\"\"],\"__metadata__\":{\"\":\"\"}}",
	"{\"k\xc3\xa4\":" TENSOR ",\"__metadata__\":{\"\xe2\x82\xac\":\"x\"}}",
};

static void test_a_file_returns_byte_for_byte(void **state)
{
	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(headers); i++) {
		struct file file = small_file(headers[i]);

		must_return(&file, i % 2);
		free(file.data);
	}
}

static void test_an_object_is_a_safetensors_file(void **state)
{
	char text[200];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(headers); i++) {
		json_t *json = json_of(headers[i], text);
		json_t *was = json_loads(headers[i], 0, NULL);
		json_t *metadata = json_object_get(json, "__metadata__");

		assert_memory_equal(text, "1 ", 2);
		assert_int_equal(json_object_del(metadata, "kvfs.object"), 0);
		if (!json_object_get(was, "__metadata__"))
			json_object_del(json, "__metadata__");
		assert_true(json_equal(json, was));
		json_decref(json);
		json_decref(was);
	}
}

/* The entry has the form that kvfs-remote(7) documents. */
static void test_the_entry_has_its_documented_form(void **state)
{
	const struct file file = small_file(headers[0]);
	const struct kv_object_entry entry = entry_of(&file, true);
	char text[200], wanted[200], digest[33], key[65], parent[65];

	(void)state;
	json_decref(json_of(headers[0], text));
	kv_hex(entry.digest.b, 16, digest);
	kv_key_name(&entry.key, key);
	kv_key_name(&entry.parent, parent);
	snprintf(wanted, sizeof(wanted), "1 %s %s %llu %s", digest, key,
		 (unsigned long long)file.bytes, parent);
	assert_string_equal(text, wanted);
	free(file.data);
}

/* Make objects of a file with a header that kvfs wrote, and of a file that is
 * itself an object. */
static void test_files_of_kvfs_and_objects_return(void **state)
{
	static const char text[] =
		"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":"
		"[2,3]}],\"tokens\":4}";
	struct kv_meta meta = {.parent = {.len = 16}, .tokens = 4};
	struct kv_key key = {.len = 32, .b = "key"};
	struct kv_object_entry entry;
	struct kv_layout *layout;
	struct file file, object;

	(void)state;
	assert_int_equal(kv_layout_parse(text, strlen(text), &layout), 0);
	file.bytes = kv_block_header_bytes(layout) + layout->payload;
	file.data = calloc(1, file.bytes);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, file.data),
			 0);
	must_return(&file, true);
	entry = entry_of(&file, false);
	assert_int_equal(object_of(&file, &entry, &object), 0);
	must_return(&object, true);
	free(object.data);
	free(file.data);
	kv_layout_free(layout);
}

static void test_what_is_no_header_has_no_object(void **state)
{
	static const char *const bad[] = {
		"",
		"{",
		"{ ",
		"[\"k\"]",
		"x",
		"{\"__metadata__\":{",
		"{\"__metadata__\" : { ",
	};
	struct file object;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(bad); i++) {
		/* The file ends with its header: a sanitizer finds reads
		 * past it. */
		struct file file = file_of(bad[i], strlen(bad[i]), "", 0);
		struct kv_object_entry entry = entry_of(&file, true);
		struct kv_object_entry found;

		if (object_of(&file, &entry, &object) != -EINVAL)
			fail_msg("%s", bad[i]);
		assert_int_equal(file_out_of(&file, &found, &object), -EBADMSG);
		free(file.data);
	}
}

static void test_lengths_are_bounded(void **state)
{
	static const uint64_t lens[] = {
		0,
		1,
		1 << 20,
		KV_HEADER_MAX,
		KV_HEADER_MAX + 1,
		UINT64_MAX / 2,
		UINT64_MAX - 8,
		UINT64_MAX - 7,
		UINT64_MAX,
	};
	struct file file = small_file(headers[0]), object, again;
	struct kv_object_entry entry = entry_of(&file, true), found;
	char *long_header;

	(void)state;
	assert_int_equal(object_of(&file, &entry, &object), 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(lens); i++) {
		for (unsigned k = 0; k < 8; k++)
			file.data[k] = object.data[k] =
				(uint8_t)(lens[i] >> (8 * k));
		assert_int_equal(object_of(&file, &entry, &again),
				 lens[i] > KV_HEADER_MAX ? -EFBIG : -EINVAL);
		assert_int_equal(file_out_of(&object, &found, &again),
				 -EBADMSG);
	}
	for (file.bytes = 0; file.bytes < 9; file.bytes++)
		assert_true(object_of(&file, &entry, &again) < 0);
	free(file.data);
	free(object.data);

	/* The entry would make the header longer than the limit. */
	long_header = malloc(KV_HEADER_MAX);
	memset(long_header, ' ', KV_HEADER_MAX);
	memcpy(long_header, headers[0], strlen(headers[0]));
	file = file_of(long_header, KV_HEADER_MAX, PAYLOAD, 1);
	entry = entry_of(&file, false);
	assert_int_equal(object_of(&file, &entry, &object), -EFBIG);
	free(file.data);
	file = file_of(long_header, KV_HEADER_MAX - 300, PAYLOAD, 1);
	must_return(&file, true);
	free(file.data);
	free(long_header);
}

/* Replace @old by @new in the object of @header; return the result of the
 * parser. */
static int changed(const char *header, const char *old, const char *new)
{
	struct file file = small_file(header), object, again = {0}, other;
	const struct kv_object_entry entry = entry_of(&file, true);
	struct kv_object_entry found;
	uint64_t len = 0, at, grown;
	uint8_t *place;
	int r;

	assert_int_equal(object_of(&file, &entry, &object), 0);
	place = memmem(object.data, object.bytes, old, strlen(old));
	assert_non_null(place);
	at = (uint64_t)(place - object.data);
	grown = strlen(new) - strlen(old);
	other.bytes = object.bytes + grown;
	other.data = malloc(other.bytes);
	memcpy(other.data, object.data, at);
	memcpy(other.data + at, new, strlen(new));
	memcpy(other.data + at + strlen(new), place + strlen(old),
	       object.bytes - at - strlen(old));
	for (unsigned i = 8; i-- > 0;)
		len = len << 8 | other.data[i];
	len += grown;
	for (unsigned i = 0; i < 8; i++)
		other.data[i] = (uint8_t)(len >> (8 * i));
	r = file_out_of(&other, &found, &again);
	free(file.data);
	free(object.data);
	free(other.data);
	free(again.data);
	return r;
}

static void test_only_the_exact_form_is_an_entry(void **state)
{
	static const char first[] = "{\"__metadata__\":{\"a\":\"b\"},\"k\":1}";
	static const char empty[] = "{\"__metadata__\":{},\"k\":1}";
	static const char none[] = "{\"k\":1}";

	(void)state;
	assert_int_equal(changed(first, "\"1 ", "\"1 "), 0);
	assert_int_equal(changed(empty, "\"1 ", "\"1 "), 0);
	assert_int_equal(changed(none, "\"1 ", "\"1 "), 0);
	assert_int_equal(changed(first, "\"1 ", "\"2 "), -EBADMSG);
	assert_int_equal(changed(first, "\"1 ", "\"1  "), -EBADMSG);
	assert_int_equal(changed(first, "\"1 ", "\"01 "), -EBADMSG);
	assert_int_equal(changed(first, "kvfs.object", "kvfs.objecu"),
			 -EBADMSG);
	assert_int_equal(changed(first, "\":\"1", "\": \"1"), -EBADMSG);
	assert_int_equal(changed(first, "\"kvfs", " \"kvfs"), -EBADMSG);
	assert_int_equal(changed(first, "\",\"a", "\" ,\"a"), -EBADMSG);
	assert_int_equal(changed(first, "\",\"a", "\"\"a"), -EBADMSG);
	assert_int_equal(changed(empty, "\"},", "\"],"), -EBADMSG);
	assert_int_equal(changed(none, "\"},", "\"} "), -EBADMSG);
	assert_int_equal(changed(none, "{\"__m", "{ \"__m"), -EBADMSG);
	assert_int_equal(changed(none, ":{\"kv", ": {\"kv"), -EBADMSG);
	assert_int_equal(changed(none, "__metadata__", "__metadata_x"),
			 -EBADMSG);
	assert_int_equal(changed(none, "_metadata__", "\\u005fmetadata__"),
			 -EBADMSG);
}

/* Change one byte of an object: the parser refuses the object, or the file's
 * digest differs, or the file is intact because only the entry was damaged. */
static void test_damage_never_makes_a_wrong_file(void **state)
{
	unsigned accepted = 0;

	(void)state;
	srand(1);
	for (size_t i = 0; i < KV_ARRAY_LEN(headers); i++) {
		struct file file = small_file(headers[i]), object, again;
		const struct kv_object_entry entry = entry_of(&file, true);
		struct kv_object_entry found;

		assert_int_equal(object_of(&file, &entry, &object), 0);
		for (unsigned n = 0; n < 4000; n++) {
			struct file bad = {malloc(object.bytes), object.bytes};
			struct kv_digest digest;

			memcpy(bad.data, object.data, bad.bytes);
			for (int k = rand() % 3; k >= 0; k--)
				bad.data[(size_t)rand() % bad.bytes] =
					n % 2 ? (uint8_t)rand()
					      : (uint8_t) "{}\",: \\09a"
							[rand() % 10];
			if (n % 5 == 0)
				bad.bytes = (uint64_t)rand() % bad.bytes;
			if (file_out_of(&bad, &found, &again) == 0) {
				digest = kv_digest_of(again.data, again.bytes);
				if (memcmp(&digest, &found.digest, 16) == 0) {
					accepted++;
					assert_int_equal(again.bytes,
							 file.bytes);
					assert_memory_equal(again.data,
							    file.data,
							    file.bytes);
				}
				free(again.data);
			}
			free(bad.data);
		}
		free(file.data);
		free(object.data);
	}
	/* damage is accepted only in the entry that kvfs has added */
	assert_true(accepted > 0);
}

/* Files whose headers are random characters of JSON: if an object can be made
 * of a file, the file is restored from the object. */
static void test_random_headers(void **state)
{
	static const char *const words[] = {
		"{",
		"}",
		"[",
		"]",
		":",
		",",
		"\"",
		" ",
		"\\",
		"\"k\"",
		"1",
		"\\u005f",
		"__metadata__",
		"\"__metadata__\":{",
		"\"kvfs.object\":\"1 ",
		"\"a\":\"b\"",
	};
	unsigned objects = 0;

	(void)state;
	srand(2);
	for (unsigned n = 0; n < 200000; n++) {
		char header[400] = "{";
		struct kv_object_entry entry;
		struct file file, object;

		if (n % 2)
			strcat(header, "\"__metadata__\":{");
		for (int k = rand() % 12; k > 0; k--)
			strcat(header,
			       words[(size_t)rand() % KV_ARRAY_LEN(words)]);
		if (n % 3)
			strcat(header, "}");
		if (n % 4 == 0)
			strcat(header, ",\"k\":{}}");
		file = file_of(header, strlen(header), PAYLOAD, n % 14);
		entry = entry_of(&file, n % 2);
		if (object_of(&file, &entry, &object) == 0) {
			free(object.data);
			must_return(&file, n % 2);
			objects++;
		}
		free(file.data);
	}
	assert_true(objects > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_file_returns_byte_for_byte),
		cmocka_unit_test(test_an_object_is_a_safetensors_file),
		cmocka_unit_test(test_the_entry_has_its_documented_form),
		cmocka_unit_test(test_files_of_kvfs_and_objects_return),
		cmocka_unit_test(test_what_is_no_header_has_no_object),
		cmocka_unit_test(test_lengths_are_bounded),
		cmocka_unit_test(test_only_the_exact_form_is_an_entry),
		cmocka_unit_test(test_damage_never_makes_a_wrong_file),
		cmocka_unit_test(test_random_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
