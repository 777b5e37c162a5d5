/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.c - what objects of the remote tier are called: TENANT/SPACE/KEY.
 *
 * SPACE is the SHA-256 of the space's name, a zero byte, and its layout without
 * the seed: nodes that never spoke agree on it.  TENANT is the owner's uid in
 * decimal, or the name that the operator has given it.
 *
 * OWNS      nothing.
 *
 * LOCKING   cache->lock is taken for what is read of a space.
 */
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>

#include "cache/remote/tier.h"
#include "common/bytes.h"

/* The layout as all nodes have it; caller frees.  NULL: no memory. */
static char *without_seed(const char *layout)
{
	json_t *json = json_loads(layout, 0, NULL);
	char *text = NULL;

	if (!json)
		return NULL;
	json_object_del(json, "seed");
	json_object_del(json, "share");
	text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
	json_decref(json);
	return text;
}

static int hash_of(const char *name, const char *layout, char hex[65])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	bool ok;

	ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) &&
	     EVP_DigestUpdate(context, name, strlen(name) + 1) &&
	     EVP_DigestUpdate(context, layout, strlen(layout)) &&
	     EVP_DigestFinal_ex(context, digest, &n) && n == 32;
	EVP_MD_CTX_free(context);
	if (ok)
		kv_hex(digest, n, hex);
	return ok ? 0 : -ENOMEM;
}

static void tenant_of(const struct kv_remote_config *config, uint32_t uid,
		      char name[KV_OBJECT_TENANT_MAX + 1])
{
	snprintf(name, KV_OBJECT_TENANT_MAX + 1, "%u", uid);
	for (size_t i = 0; i < config->n_tenants; i++)
		if (config->tenants[i].uid == uid)
			snprintf(name, KV_OBJECT_TENANT_MAX + 1, "%s",
				 config->tenants[i].name);
}

uint32_t kv_remote_user(struct kv_cache *cache, const struct kv_space *space)
{
	uint32_t uid;

	kv_lock(cache);
	uid = space->uid;
	kv_unlock(cache);
	return uid;
}

int kv_remote_prefix_of(struct kv_cache *cache, struct kv_space *space,
			const char *layout,
			char prefix[KV_REMOTE_PREFIX_MAX + 1])
{
	_cleanup_(kv_freep) char *text =
		layout ? without_seed(layout) : strdup("");
	char tenant[KV_OBJECT_TENANT_MAX + 1], hex[65];
	int r = text ? hash_of(space->name, text, hex) : -ENOMEM;

	if (r < 0)
		return r;
	tenant_of(&cache->config.remote, kv_remote_user(cache, space), tenant);
	snprintf(prefix, KV_REMOTE_PREFIX_MAX + 1, "%s/%s/", tenant, hex);
	return 0;
}

int kv_remote_prefix(struct kv_cache *cache, struct kv_space *space,
		     char prefix[KV_REMOTE_PREFIX_MAX + 1])
{
	const struct kv_layout *layout;

	kv_lock(cache);
	layout = space->layout; /* it stays as long as the space */
	kv_unlock(cache);
	return kv_remote_prefix_of(cache, space, layout ? layout->json : NULL,
				   prefix);
}
