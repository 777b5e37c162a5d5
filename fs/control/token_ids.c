/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_ids.c - WIRE_TOKEN_IDS: what the tokens of blocks are, from the index or
 * from the blocks, on a thread that may wait for them.
 *
 * OWNS      the keys and the reply of each request.
 *
 * LOCKING   none: a request belongs to one thread at a time.
 */
#include "fs/control/chore.h"

#define ROOM (WIRE_MAX - sizeof(struct wire_header))
#define TURN_NS 20000000u /* then the rest is for another request */

struct telling {
	struct kv_chore chore; /* first */
	uint32_t n, told;      /* keys */
	size_t bytes;	       /* of the reply */
	struct kv_key *keys;
	uint8_t *reply; /* ROOM bytes */
};

_Static_assert(sizeof(struct wire_tokens) - offsetof(struct wire_tokens, n) ==
		       sizeof(struct kv_token_ids),
	       "the numbers are those of kv_token_ids");
_Static_assert(sizeof(struct wire_tokens) + KV_TOKEN_IDS_MAX * 4 +
			       KV_EXTRAS_MAX + 8 <=
		       ROOM,
	       "any block fits");

static int look(struct telling *telling, const struct kv_key *key,
		struct kv_meta *ret_meta, struct kv_token_ids **ret_ids)
{
	struct kv_cache *cache = telling->chore.request.server->cache;
	struct kv_block *block;
	int r = kv_block_get(cache, telling->chore.request.space, key, &block);

	if (r < 0)
		return r;
	r = kv_block_get_token_ids(cache, block, ret_meta, ret_ids);
	kv_block_put(cache, block);
	if (r == -ETIMEDOUT) /* the SSD does not answer */
		return -EIO;
	return r == -EBADMSG ? -ENOENT : r;
}

/* False: there is no room for it. */
static bool tell(struct telling *telling, const struct kv_key *key)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_meta meta = {0};
	struct wire_tokens tokens = {.status = look(telling, key, &meta, &ids)};
	uint8_t *at = telling->reply + telling->bytes;
	const size_t head = offsetof(struct wire_tokens, n);
	size_t more = ids ? kv_token_ids_bytes(ids->n, ids->extras_len)
			  : sizeof(struct kv_token_ids);

	tokens.bytes = (uint32_t)kv_round_up(head + more, 8);
	if (tokens.bytes > ROOM - telling->bytes)
		return false;
	tokens.parent_len = meta.parent.len;
	memcpy(tokens.parent, meta.parent.b, sizeof(tokens.parent));
	tokens.position = meta.position;
	memset(at, 0, tokens.bytes);
	memcpy(at, &tokens, head);
	if (ids)
		memcpy(at + head, ids, more);
	telling->bytes += tokens.bytes;
	return true;
}

static int tell_some(struct kv_chore *chore)
{
	struct telling *telling = (struct telling *)chore;
	const uint64_t until = kv_now_ns() + TURN_NS;

	while (telling->told < telling->n &&
	       (telling->told == 0 || kv_now_ns() < until) &&
	       tell(telling, &telling->keys[telling->told]))
		telling->told++;
	return 0;
}

static void finish(struct kv_request *request)
{
	struct telling *telling = (struct telling *)request;
	struct kv_client *client = request->client;

	if (client && telling->chore.status == 0)
		memcpy(kv_reply_items(request->server), telling->reply,
		       telling->bytes);
	if (client)
		kv_reply(client, &request->header, telling->chore.status,
			 telling->chore.status == 0 ? (uint32_t)telling->bytes
						    : 0,
			 telling->chore.status == 0 ? telling->bytes : 0);
	kv_request_free(request);
}

static const struct kv_request_kind kind = {finish, kv_chore_cancel, NULL};

static int begin(struct kv_client *client, const struct kv_message *m,
		 struct kv_space *space)
{
	const uint32_t n = m->header->count;
	const size_t keys = n * sizeof(struct kv_key);
	struct telling *telling;
	int r = kv_request_new(client, m->header, &kind,
			       sizeof(*telling) + keys + ROOM, &telling);

	if (r < 0)
		return r;
	telling->chore.request.space = kv_space_get(space);
	telling->n = n;
	telling->keys = (struct kv_key *)(telling + 1);
	telling->reply = (uint8_t *)telling->keys + keys;
	memcpy(telling->keys, client->server->keys, keys);
	kv_chore_begin(&telling->chore, tell_some);
	return 0;
}

/* Who may not read the space is told that it is not there. */
int kv_request_token_ids(struct kv_client *client, const struct kv_message *m)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	int r = kv_request_keys(client, m);

	if (r < 0)
		return r;
	r = kv_client_space(client, m->header->space, R_OK | X_OK, &space,
			    &info);
	if (r == 0 && !(info.layout && info.layout->token_ids))
		r = -EINVAL;
	if (r == 0)
		r = begin(client, m, space);
	if (r < 0)
		kv_reply(client, m->header, r == -EACCES ? -ENOENT : r, 0, 0);
	return 0;
}
