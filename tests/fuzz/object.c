/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the remote tier, as any node, or anybody with the bucket, may write them;
 * and objects of files that anybody may write. */
#include "cache/remote/backend.h"
#include "common/block.h"
#include "tests/fuzz/fuzz.h"

/* Return the file that an object contains, for the caller to free; NULL: not an
 * object. */
static uint8_t *take_out(const uint8_t *object, uint64_t n,
			 struct kv_object_entry *entry)
{
	struct kv_object found;
	uint64_t cut, next;
	uint8_t *file;

	if (kv_object_parse(object, n, &found) < 0)
		return NULL;
	*entry = found.entry;
	cut = found.cut;
	next = found.next;
	fuzz_must(cut > 8 && cut < next && next < n);
	fuzz_must(cut + n - next == entry->length);
	fuzz_must(entry->key.len == 16 || entry->key.len == 32);
	file = malloc(entry->length);
	fuzz_must(file);
	memcpy(file, found.prefix, 8);
	memcpy(file + 8, object + 8, cut - 8);
	memcpy(file + cut, object + next, n - next);
	return file;
}

/* If an object can be made of the file, check that the object gives back the
 * same file. */
static void check_file(const uint8_t *file, uint64_t n)
{
	const struct kv_object_entry entry = {
		.key = {.len = 32, .b = "key"},
		.parent = {.len = n % 2 ? 16 : 0},
		.length = n,
	};
	uint8_t *head = NULL, *object, *again;
	struct kv_object_entry found;
	uint64_t head_bytes, rest;

	if (kv_object_head(file, n, &entry, &head, &head_bytes, &rest) < 0)
		return;
	fuzz_must(rest >= 9 && rest <= n && head_bytes > rest);
	object = malloc(head_bytes + n - rest);
	fuzz_must(object);
	memcpy(object, head, head_bytes);
	memcpy(object + head_bytes, file + rest, n - rest);
	again = take_out(object, head_bytes + n - rest, &found);
	fuzz_must(again && found.length == n);
	fuzz_must(memcmp(again, file, n) == 0);
	fuzz_must(kv_key_equal(&found.key, &entry.key));
	fuzz_must(kv_key_equal(&found.parent, &entry.parent));
	free(head);
	free(object);
	free(again);
}

/* Input: a byte (odd: keep the length of the header that the object states;
 * even: set it to the number of the bytes that follow), then the object. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	const bool as_is = fuzz_byte(&f) % 2;
	struct kv_object_entry entry;
	size_t n;
	uint8_t *input = fuzz_take(&f, f.left, &n), *file;

	if (!as_is && n > 12) {
		memset(input, 0, 8);
		input[0] = (uint8_t)(n - 12);
		input[1] = (uint8_t)((n - 12) >> 8);
		input[2] = (uint8_t)((n - 12) >> 16);
	}
	file = take_out(input, n, &entry);
	/* If the object gives a file, an object can be made of that file again.
	 * */
	if (file)
		check_file(file, entry.length);
	check_file(input, n);
	free(file);
	free(input);
	return 0;
}
