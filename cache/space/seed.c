/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seed.c - the seeds of keys, and which spaces may be shared with other nodes.
 *
 * Nodes find each other's blocks if they make the same keys.  Keys of an engine
 * ("keys": "engine") are the same everywhere.  Keys of libkvfs depend on the layout's
 * seed: one that the layout gives, or one that all nodes derive from the file of
 * remote_secret=, the tenant and the fingerprint, or one drawn at random, which no
 * other node has.  Nothing public alone makes a seed: with a known seed one can find
 * two prompts that have the same key.
 *
 * OWNS       the digest of the secret; the layouts that get another seed.
 *
 * INVARIANTS
 *   (1) A space that is shared has no own_seed.
 *   (2) A layout that a client has seen lives as long as the space: it is replaced at
 *       most once a mount, while the space has no blocks.
 *
 * LOCKING    cache->lock.
 */
#include "cache/space/space.h"
#include "common/bytes.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/uio.h>

#define SECRET_MIN 16
#define SECRET_MAX 4096
#define CONTEXT "kvfs-seed-1"
#define TELL_NS UINT64_C(60000000000)
#define SECRET_BYTES 32u /* bytes of the SHA-256 of the secret's file */

/* Hash the @n @parts, each with its length.  -ENOMEM. */
static int sha256(const struct iovec *parts, size_t n, uint8_t digest[32])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL);

	for (size_t i = 0; ok && i < n; i++) {
		const uint64_t length = htole64(parts[i].iov_len);

		ok = EVP_DigestUpdate(context, &length, sizeof(length)) &&
		     EVP_DigestUpdate(context, parts[i].iov_base,
				      parts[i].iov_len);
	}
	ok = ok && EVP_DigestFinal_ex(context, digest, NULL);
	EVP_MD_CTX_free(context);
	return ok ? 0 : -ENOMEM;
}

int kv_seeds_open(struct kv_cache *cache, char **ret_why)
{
	const char *path = cache->config.remote.secret;
	_cleanup_(kv_freep) char *why = NULL;
	char text[SECRET_MAX];
	struct iovec part = {.iov_base = text};
	int r;

	if (!path)
		return 0;
	r = kv_secret_read(path, text, sizeof(text), &why);
	while (r > 0 && isspace((unsigned char)text[r - 1]))
		r--;
	if (r < 0)
		return kv_why(ret_why, r, "remote_secret=%s: %s", path,
			      why ? why : strerror(-r));
	if (r < SECRET_MIN)
		return kv_why(ret_why, -EINVAL,
			      "remote_secret=%s: shorter than %d bytes", path,
			      SECRET_MIN);
	part.iov_len = (size_t)r;
	cache->secret = calloc(1, SECRET_BYTES);
	r = cache->secret ? sha256(&part, 1, cache->secret) : -ENOMEM;
	explicit_bzero(text, sizeof(text));
	return r < 0 ? kv_why(ret_why, r, "remote_secret: %s", strerror(-r))
		     : 0;
}

/* Derive the seed of the spaces of @uid from the fingerprint of @layout: the
 * ranks and layer groups of one model have other tensors, but equal keys. */
static int derive(const struct kv_cache *cache, uint32_t uid,
		  const struct kv_layout *layout, uint64_t *ret_seed)
{
	char tenant[KV_REMOTE_NAME_MAX + 1];
	uint8_t digest[32] = {0};
	uint64_t seed = 0;
	int r;

	kv_tenant_name(cache, uid, tenant);
	r = sha256((struct iovec[]){{CONTEXT, strlen(CONTEXT)},
				    {cache->secret, SECRET_BYTES},
				    {tenant, strlen(tenant)},
				    {(void *)layout->fingerprint,
				     layout->fingerprint_len}},
		   4, digest);
	for (int i = 0; i < 8; i++)
		seed = seed << 8 | digest[i];
	*ret_seed = seed;
	return r;
}

int kv_seed_layout(struct kv_cache *cache, uint32_t uid,
		   struct kv_layout *layout)
{
	uint64_t seed;
	int r = 0;

	if (!cache->secret || !layout->seed_drawn)
		return 0;
	r = derive(cache, uid, layout, &seed);
	return r < 0 ? r : kv_layout_set_seed(layout, seed);
}

bool kv_seed_is_of_locked(struct kv_cache *cache, const struct kv_space *space,
			  uint32_t uid)
{
	const struct kv_layout *layout = space->layout;
	uint64_t seed;

	kv_assert_locked(&cache->lock);
	return cache->secret && layout && !layout->engine_keys &&
	       derive(cache, uid, layout, &seed) == 0 && layout->seed == seed;
}

/* Give a space without blocks the seed that all nodes derive.  -EINVAL: the
 * space has blocks, or its layout gives the seed. */
static int reseed(struct kv_cache *cache, struct kv_space *space)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	const struct kv_layout *there;
	uint32_t uid;
	int r;

	kv_lock(cache);
	there = space->layout;
	uid = space->uid;
	r = cache->secret && there && !space->blocks ? 0 : -EINVAL;
	kv_unlock(cache);
	if (r == 0)
		r = kv_layout_parse(there->json, strlen(there->json), &layout);
	if (r < 0)
		return r;
	layout->seed_drawn = true;
	r = kv_seed_layout(cache, uid, layout);
	if (r < 0)
		return r;
	kv_lock(cache);
	/* The space was charged for its text: the new one must be as long. */
	if (space->blocks || space->removed || space->former ||
	    space->uid != uid || strlen(there->json) != strlen(layout->json)) {
		r = -EINVAL;
	} else {
		space->former = space->layout;
		space->layout = kv_steal(layout);
		space->own_seed = false;
	}
	kv_unlock(cache);
	return r;
}

void kv_seed_refused(struct kv_cache *cache, struct kv_space *space)
{
	const uint64_t now = kv_now_ns();
	_cleanup_(kv_freep) char *line = NULL;
	const char *why = "sharing needs \"seed\" or \"keys\": \"engine\" in "
			  "the layout, or remote_secret= on the mount: see "
			  "kvfs-remote(7)";
	bool tell;

	if (cache->secret)
		why = "remove its blocks, whose keys no other node can have";

	kv_lock(cache);
	snprintf(space->layout_error, sizeof(space->layout_error), "%s", why);
	tell = !cache->unshared_ns || now - cache->unshared_ns > TELL_NS;
	if (tell)
		cache->unshared_ns = now;
	kv_unlock(cache);
	kv_why(&line, 0, "%s is not shared: %s", space->name, why);
	if (tell && line)
		fprintf(stderr, "kvfs: %s\n", line);
}

int kv_seed_may_share(struct kv_cache *cache, struct kv_space *space)
{
	bool own;
	int r;

	kv_lock(cache);
	own = space->own_seed;
	kv_unlock(cache);
	r = own ? reseed(cache, space) : 0;
	if (r == -EINVAL)
		kv_seed_refused(cache, space);
	return r;
}

void kv_seeds_settle(struct kv_cache *cache)
{
	char others[40] = "";
	_cleanup_(kv_freep) char *name = NULL;
	struct kv_space *space;
	uint32_t id = 0, n = 0;

	while ((space = kv_space_next(cache, id))) {
		id = space->id;
		if (space->shared && space->own_seed) {
			if (reseed(cache, space) < 0) {
				kv_lock(cache);
				space->shared = false;
				kv_unlock(cache);
				if (n++ == 0)
					kv_why(&name, 0, "%s", space->name);
			}
			if (!cache->config.read_only)
				(void)kv_space_persist(cache, space);
		}
		kv_space_put(space);
	}
	if (n > 1)
		snprintf(others, sizeof(others), ", and %u other spaces",
			 n - 1);
	if (n > 0)
		kv_warn(cache, "unshared",
			"%s is not shared any more%s: no other node can have "
			"the keys; remove the blocks, mount with "
			"remote_secret= and share it again, see "
			"kvfs-remote(7)",
			name ? name : "", others);
}
