/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.c - structs of callers built against another kvfs.h, and keys of blocks.
 *
 * The encoding of a block's own key, which never changes: XXH3-128, seeded with
 * the layout's seed, over "kvfs-key-1" and a NUL, and then fields, each
 *
 *     u32 length of the tag, the tag, u64 length of the data, the data
 *
 * in this order: "fingerprint" (the layout's), "parent" (the parent's key, or
 * 16 zero bytes), "salt" (the layout's), "x:" + tag for each extra in the order
 * given, "tokens" (the block's ids, u32 each).  All numbers are little-endian.
 * The key is the digest in canonical order, 16 bytes.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Every struct with a size has the size first, as a size_t.
 *   (2) Nothing is read or written beyond the caller's size.
 *
 * LOCKING   none, except to read the space's layout.
 */
#include <sha2.h>
#include <xxhash.h>

#include "common/block.h"
#include "kernels/session/session.h"

/* Larger than any struct of kvfs.h: kv_abi_in and kv_abi_out refuse a larger
 * size. */
#define SIZE_MAX_OF_ALL 4096u

_Static_assert(offsetof(kvfs_opts, size) == 0 &&
		       offsetof(kvfs_pool_desc, size) == 0 &&
		       offsetof(struct kvfs_pool_info, size) == 0,
	       "(1)");

uint32_t kvfs_version(void)
{
	return KVFS_VERSION;
}

const char *kvfs_version_text(void)
{
	return KV_VERSION;
}

bool kv_abi_is_zero(const void *reserved, size_t bytes)
{
	const uint8_t *at = reserved;

	for (size_t i = 0; i < bytes; i++)
		if (at[i] != 0)
			return false;
	return true;
}

static int read_size(const void *from, size_t *ret_size)
{
	memcpy(ret_size, from, sizeof(*ret_size));
	if (*ret_size < sizeof(*ret_size))
		return -EINVAL;
	return *ret_size > SIZE_MAX_OF_ALL ? -E2BIG : 0;
}

int kv_abi_in(void *ret, size_t known, const void *from)
{
	size_t size;
	int r = read_size(from, &size);

	if (r < 0)
		return r;
	if (size > known &&
	    !kv_abi_is_zero((const uint8_t *)from + known, size - known))
		return -E2BIG;
	memset(ret, 0, known);
	memcpy(ret, from, KV_MIN(size, known));
	memcpy(ret, &known, sizeof(known));
	return 0;
}

int kv_abi_opts(kvfs_opts *ret_opts, const kvfs_opts *opts)
{
	static const kvfs_opts none = KVFS_OPTS_INIT;

	int r = kv_abi_in(ret_opts, sizeof(*ret_opts), opts ? opts : &none);

	if (r == 0 &&
	    !kv_abi_is_zero(ret_opts->reserved, sizeof(ret_opts->reserved)))
		r = -EINVAL;
	return r;
}

bool kv_abi_opts_are_plain(const kvfs_opts *opts, unsigned flags)
{
	kvfs_opts plain = {.size = opts->size,
			   .user = opts->user,
			   .deadline = opts->deadline,
			   .flags = opts->flags & flags};

	return memcmp(&plain, opts, sizeof(plain)) == 0;
}

int kv_abi_out(void *ret, const void *from, size_t known)
{
	size_t size;
	int r = read_size(ret, &size);

	if (r < 0)
		return r;
	memcpy(ret, from, KV_MIN(size, known));
	if (size > known)
		memset((uint8_t *)ret + known, 0, size - known);
	memcpy(ret, &size, sizeof(size));
	return 0;
}

/* ---- keys ---- */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian only");

#define MAGIC "kvfs-key-1" /* MAGIC is hashed with its NUL */

static void add_field(XXH3_state_t *state, const char *prefix, const char *tag,
		      const void *data, uint64_t len)
{
	const size_t prefix_len = strlen(prefix);
	uint32_t tag_len = (uint32_t)(prefix_len + strlen(tag));

	XXH3_128bits_update(state, &tag_len, sizeof(tag_len));
	XXH3_128bits_update(state, prefix, prefix_len);
	XXH3_128bits_update(state, tag, tag_len - prefix_len);
	XXH3_128bits_update(state, &len, sizeof(len));
	if (len > 0)
		XXH3_128bits_update(state, data, len);
}

static bool extras_are_valid(const kvfs_extra *extras, size_t n)
{
	if (n > 0 && !extras)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!kv_abi_is_zero(extras[i].reserved,
				    sizeof(extras[i].reserved)) ||
		    !extras[i].tag || strlen(extras[i].tag) > UINT32_MAX - 2 ||
		    (extras[i].len > 0 && !extras[i].data))
			return false;
	return true;
}

long kvfs_key_chain(kvfs_space *space, const kvfs_key *parent,
		    const uint32_t *tokens, size_t n_tokens,
		    const kvfs_extra *extras, size_t n_extras,
		    kvfs_key *ret_keys, size_t max)
{
	static const uint8_t no_parent[16];
	const struct kv_layout *layout;
	XXH128_canonical_t canonical;
	XXH3_state_t *state;
	size_t n;
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	layout = kv_lib_space_layout(space);
	if (!layout || layout->tokens == 0 ||
	    (parent && parent->len != 16 && parent->len != 32) ||
	    !extras_are_valid(extras, n_extras))
		return -EINVAL;
	n = KV_MIN(n_tokens / layout->tokens, max);
	if (n > 0 && (!tokens || !ret_keys))
		return -EINVAL;
	state = XXH3_createState();
	if (!state)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++, tokens += layout->tokens) {
		XXH3_128bits_reset_withSeed(state, layout->seed);
		XXH3_128bits_update(state, MAGIC, sizeof(MAGIC));
		add_field(state, "", "fingerprint", layout->fingerprint,
			  layout->fingerprint_len);
		add_field(state, "", "parent",
			  parent ? parent->bytes : no_parent,
			  parent ? parent->len : sizeof(no_parent));
		add_field(state, "", "salt", layout->salt, layout->salt_len);
		for (size_t x = 0; x < n_extras; x++)
			add_field(state, "x:", extras[x].tag, extras[x].data,
				  extras[x].len);
		add_field(state, "", "tokens", tokens,
			  (uint64_t)layout->tokens * sizeof(*tokens));
		XXH128_canonicalFromHash(&canonical,
					 XXH3_128bits_digest(state));
		(void)kvfs_key_set(canonical.digest, sizeof(canonical.digest),
				   &ret_keys[i]);
		parent = &ret_keys[i];
	}
	XXH3_freeState(state);
	return (long)n;
}

void kvfs_key_name(const kvfs_key *key, char name[65])
{
	struct kv_key k = {.len = (uint8_t)KV_MIN(key->len, KV_KEY_MAX)};

	memcpy(k.b, key->bytes, k.len);
	kv_key_name(&k, name);
}

int kvfs_key_parse(const char *name, kvfs_key *ret_key)
{
	struct kv_key key;
	int r;

	if (!name || !ret_key)
		return -EINVAL;
	r = kv_key_parse(name, &key);
	if (r < 0)
		return r;
	return kvfs_key_set(key.b, key.len, ret_key);
}

int kvfs_key_set(const void *data, size_t len, kvfs_key *ret_key)
{
	if (!data || !ret_key || (len != 16 && len != 32))
		return -EINVAL;
	*ret_key = (kvfs_key){.len = (uint32_t)len};
	memcpy(ret_key->bytes, data, len);
	return 0;
}

int kvfs_key_fold(const void *data, size_t len, kvfs_key *ret_key)
{
	kvfs_key key = {.len = KVFS_KEY_MAX};
	SHA2_CTX sha;

	if (!ret_key || (!data && len > 0))
		return -EINVAL;
	SHA256Init(&sha);
	SHA256Update(&sha, len > 0 ? data : "", len);
	SHA256Final(key.bytes, &sha);
	*ret_key = key;
	return 0;
}
