/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c - make a snapshot of chosen blocks; list, read and drop snapshots.
 *
 * OWNS      the picks (chosen blocks) of a snapshot, from its first SNAPSHOT
 *           message to the reply.
 *
 * STATES    of a request that makes or drops a snapshot: the control thread checks the
 *           rights, a worker pins or unpins the blocks (change_run), the control thread
 *           replies (change_finish).
 *
 * LOCKING   none: a request belongs to one thread at a time.
 */
#include "common/array.h"
#include "fs/control/server.h"

#define SETS_MAX 16

struct kv_set {
	uint64_t id;
	struct kv_pick *picks; /* memory charged to the client's user */
	size_t n, room;
	struct kv_set *next;
};

struct change {
	struct kv_request request; /* first */
	struct kv_set *set; /* new snapshot's picks; NULL: drop a snapshot */
	size_t missing;
	char name[KV_SPACE_NAME_MAX + 1];
};

/* ---- sets of picks: the blocks chosen for a snapshot ---- */

static struct kv_set **find_set(struct kv_sets *sets, uint64_t id)
{
	struct kv_set **link = &sets->first;

	while (*link && (*link)->id != id)
		link = &(*link)->next;
	return link;
}

/* Remove and return the set of picks @id; NULL if there is none. */
static struct kv_set *take_set(struct kv_sets *sets, uint64_t id)
{
	struct kv_set **link = find_set(sets, id), *set = *link;

	if (!set)
		return NULL;
	*link = set->next;
	sets->n--;
	sets->picks -= set->n;
	return set;
}

static void free_set(struct kv_set *set, struct kv_account *account)
{
	if (!set)
		return;
	kv_account_credit(account, KV_FINITE_MEMORY,
			  set->n * sizeof(*set->picks));
	free(set->picks);
	free(set);
}

void kv_sets_drop(struct kv_client *client)
{
	struct kv_sets *sets = &client->sets;

	while (sets->first)
		free_set(take_set(sets, sets->first->id), client->account);
}

/* Add blocks to a set of picks, which is made if necessary.  Returns 0, or:
 *   -EPROTO  a key of another length
 *   -ENOSPC  more picks than a snapshot may have, or too many sets
 *   -ENOLCK  beyond the user's share
 *   -ENOMEM */
int kv_request_pick(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_pick *wire = m->items;
	const uint32_t n = m->header->count;
	const size_t bytes = n * sizeof(struct kv_pick);
	struct kv_sets *sets = &client->sets;
	struct kv_set *set = *find_set(sets, m->header->arg);
	struct kv_pick picks[WIRE_BATCH];
	int r;

	for (uint32_t i = 0; i < n; i++) {
		if (kv_wire_key(wire[i].key, wire[i].len, &picks[i].key) < 0)
			return -EPROTO;
		picks[i].position = wire[i].position;
	}
	if (sets->picks + n > KV_SNAPSHOT_BLOCKS ||
	    (!set && sets->n >= SETS_MAX))
		return -ENOSPC;
	if (!set) {
		set = calloc(1, sizeof(*set));
		if (!set)
			return -ENOMEM;
		set->id = m->header->arg;
		set->next = sets->first;
		sets->first = set;
		sets->n++;
	}
	r = kv_account_charge(client->account, KV_FINITE_MEMORY, bytes);
	if (r < 0)
		return r;
	r = kv_array_reserve(&set->picks, &set->room, set->n + n);
	if (r < 0) {
		kv_account_credit(client->account, KV_FINITE_MEMORY, bytes);
		return r;
	}
	memcpy(set->picks + set->n, picks, bytes);
	set->n += n;
	sets->picks += n;
	kv_reply(client, m->header, 0, 0, 0);
	return 0;
}

/* Copy the name of a snapshot.  Returns 0, or -EINVAL if @text cannot be a name. */
static int copy_name(const char *text, size_t n,
		     char ret_name[KV_SPACE_NAME_MAX + 1])
{
	if (n == 0 || n > KV_SPACE_NAME_MAX || strnlen(text, n) != n)
		return -EINVAL;
	memcpy(ret_name, text, n);
	ret_name[n] = '\0';
	return 0;
}

static int change_run(struct kv_wait *wait)
{
	struct change *change = (struct change *)wait;
	struct kv_cache *cache = change->request.server->cache;
	const struct kv_set *set = change->set;
	struct kv_snapshot_info info;
	int r;

	if (set)
		return kv_snapshot_create(cache, wait->space, change->name,
					  set->picks, set->n, &change->missing);
	r = kv_snapshot_find(cache, wait->space, change->name, &info);
	return r < 0 ? r : kv_snapshot_drop(cache, info.id);
}

static int change_finish(struct kv_request *request)
{
	const struct change *change = (struct change *)request;
	struct wire_snapshot *reply = kv_reply_items(request->server);

	*reply = (struct wire_snapshot){.blocks = (uint32_t)change->missing};
	kv_reply(request->client, &request->header, request->wait.status, 0,
		 change->set ? sizeof(*reply) : 0);
	return 0;
}

static void change_fini(struct kv_wait *wait)
{
	free_set(((struct change *)wait)->set, wait->account);
}

static const struct kv_request_kind kind = {
	{change_run, kv_wait_withdraw, change_fini}, change_finish};

/* Begin to make the snapshot @text of @set, which is taken over on success; or, if @set is
 * NULL, begin to drop the snapshot. */
static int begin(struct kv_client *client, const struct kv_message *m,
		 const char *text, struct kv_set *set)
{
	char name[KV_SPACE_NAME_MAX + 1];
	struct change *change;
	int r = copy_name(text, m->header->count, name);

	if (r == 0)
		r = kv_request_new(client, m, &kind, sizeof(*change), &change);
	if (r < 0)
		return r;
	change->set = set;
	strcpy(change->name, name);
	kv_request_run(&change->request);
	return 0;
}

int kv_request_snapshot(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_snapshot *wire = m->items;
	struct wire_snapshot *reply = kv_reply_items(client->server);
	struct kv_set *set = take_set(&client->sets, wire->id);
	struct kv_message with = *m;
	int r = -ESTALE;

	if (set && set->n == wire->blocks)
		r = kv_client_space(client, m->header->space, W_OK | X_OK,
				    &with.space, &with.info);
	if (r == 0)
		r = begin(client, &with, (const char *)(wire + 1), set);
	kv_space_put(with.space);
	if (r == 0)
		return 0;
	free_set(set, client->account);
	*reply = (struct wire_snapshot){.blocks = wire->blocks};
	kv_reply(client, m->header, r, 0, sizeof(*reply));
	return 0;
}

int kv_request_snapshot_drop(struct kv_client *client,
			     const struct kv_message *m)
{
	return begin(client, m, m->items, NULL);
}

int kv_request_snapshot_read(struct kv_client *client,
			     const struct kv_message *m)
{
	const struct wire_snapshot *wire = m->items;
	struct kv_cache *cache = client->server->cache;
	struct wire_snapshot *reply = kv_reply_items(client->server);
	struct wire_pick *out = (struct wire_pick *)(reply + 1);
	struct kv_pick picks[WIRE_BATCH];
	char name[KV_SPACE_NAME_MAX + 1];
	struct kv_snapshot_info info;
	size_t max = KV_MIN(m->header->arg, (uint64_t)WIRE_BATCH);
	long n;

	n = copy_name((const char *)(wire + 1), m->header->count, name);
	if (n == 0)
		n = kv_snapshot_find(cache, m->space, name, &info);
	if (n == 0 && wire->id && wire->id != info.id)
		n = -ESTALE;
	if (n == 0)
		n = kv_snapshot_read(cache, info.id, wire->from, picks,
				     max > 0 ? max : WIRE_BATCH);
	if (n < 0)
		return (int)n;
	*reply = (struct wire_snapshot){.id = info.id, .blocks = info.blocks};
	for (long i = 0; i < n; i++) {
		out[i] = (struct wire_pick){.len = picks[i].key.len,
					    .position = picks[i].position};
		memcpy(out[i].key, picks[i].key.b, sizeof(out[i].key));
	}
	kv_reply(client, m->header, 0, (uint32_t)n,
		 sizeof(*reply) + (size_t)n * sizeof(*out));
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

int kv_request_snapshot_list(struct kv_client *client,
			     const struct kv_message *m)
{
	_cleanup_(kv_freep) uint64_t *ids = NULL;
	struct kv_cache *cache = client->server->cache;
	struct wire_snapshot *reply = kv_reply_items(client->server);
	const size_t room =
		WIRE_MAX - sizeof(struct wire_header) - sizeof(*reply);
	char *text = (char *)(reply + 1);
	struct kv_snapshot_info info;
	size_t n = 0, at = 0, bytes;
	int r;

	r = kv_snapshot_list(cache, m->space, &ids, &n);
	if (r < 0)
		return r;
	qsort(ids, n, sizeof(*ids), by_id);
	*reply = (struct wire_snapshot){0};
	/* Reply with as many names as fit, of snapshots made after header->arg. */
	for (size_t i = 0; i < n; i++) {
		if (ids[i] <= m->header->arg ||
		    kv_snapshot_stat(cache, ids[i], &info) < 0)
			continue;
		bytes = strlen(info.name) + 1;
		if (at + bytes > room)
			break;
		memcpy(text + at, info.name, bytes);
		at += bytes;
		reply->id = ids[i];
	}
	kv_reply(client, m->header, 0, (uint32_t)at, sizeof(*reply) + at);
	return 0;
}
