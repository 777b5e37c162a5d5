/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz the head of a block's file, which any writer may have made. */
#include "common/block.h"
#include "tests/fuzz/fuzz.h"

static const char text[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[5]}],\"tokens\":4}";

static const char kept_text[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"BF16\",\"shape\":[2,3]},"
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[5]}],\"tokens\":4,"
	"\"token_ids\":true}";

struct verdict {
	int r;
	uint64_t length, payload;
	struct kv_meta meta;
};

static struct verdict parse(const uint8_t *data, size_t n,
			    const struct kv_layout *layout)
{
	struct fuzz f = {data, n};
	_cleanup_(kv_freep) uint8_t *exact = fuzz_take(&f, n, &n);
	struct verdict v = {0};

	v.r = kv_block_parse(exact, n, layout, &v.length, &v.payload, &v.meta);
	if (v.r == 0) {
		fuzz_must(v.payload > 8 && v.payload <= v.length);
		fuzz_must(v.meta.parent.len == 0 || v.meta.parent.len == 16 ||
			  v.meta.parent.len == 32);
	}
	return v;
}

/* Check that the verdict on the first bytes of a file still holds when more
 * bytes are known, because a writer's bytes arrive in pieces. */
static void check(const uint8_t *data, size_t n, size_t fewer,
		  const struct kv_layout *layout)
{
	struct verdict all = parse(data, n, layout);
	struct verdict part = parse(data, KV_MIN(fewer, n), layout);

	if (part.r == -EAGAIN)
		return;
	fuzz_must(part.r == all.r && part.length == all.length &&
		  part.payload == all.payload);
}

/* Check a file of a space with token ids: the ids that are parsed come back from a header
 * that is written with them. */
static void check_ids(const uint8_t *data, size_t n,
		      const struct kv_layout *layout)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL, *again = NULL;
	_cleanup_(kv_freep) uint8_t *header = NULL;
	const uint64_t bytes = kv_block_header_bytes(layout);
	struct verdict v = parse(data, n, layout);
	struct kv_key key = {.len = 16};

	if (kv_block_parse_token_ids(data, n, &ids) < 0)
		ids = NULL;
	fuzz_must(v.r != 0 || (ids && ids->n == v.meta.tokens));
	if (!ids || ids->n > layout->tokens)
		return;
	fuzz_must(kv_token_ids_check(
			  ids, kv_token_ids_bytes(ids->n, ids->extras_len)) >
		  0);
	v.meta.ids = ids;
	v.meta.parent.len = 0;
	header = malloc(bytes);
	fuzz_must(kv_block_header_write(layout, &key, &v.meta, header) == 0);
	fuzz_must(kv_block_parse_token_ids(header, bytes, &again) == 0);
	fuzz_must(memcmp(ids, again,
			 kv_token_ids_bytes(ids->n, ids->extras_len)) == 0);
}

/* Input: the number of bytes of the file that arrive first, then the file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kv_layout *layout, *kept;
	struct fuzz f = {data, size};
	size_t fewer = fuzz_u16(&f);

	if (!layout)
		fuzz_must(kv_layout_parse(text, strlen(text), &layout) == 0);
	check(f.at, f.left, fewer, NULL);
	check(f.at, f.left, fewer, layout);
	if (!kept)
		fuzz_must(kv_layout_parse(kept_text, strlen(kept_text),
					  &kept) == 0);
	check(f.at, f.left, fewer, kept);
	check_ids(f.at, f.left, kept);
	return 0;
}
