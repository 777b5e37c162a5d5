/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Valid messages of three clients, in any order, to a whole daemon.  Each message must be
 * answered soon, and leased blocks and listed tokens must be right.  When all clients have
 * left, nothing may be leased or reserved, and all flushed blocks must be durable.  Two
 * clients also send nonsense, and are then cut off; one speaks the previous version of the
 * protocol.  Run by root, each client has another uid.
 *
 * OWNS      the daemon's cache and socket, and the clients, until the process ends.
 *
 * LOCKING   none: the daemon's threads lock for themselves.
 */
#include "cache/dram/dram.h"
#include "tests/cache/wait.h"
#include "tests/cache/check_arena.h"
#include "fs/base/access.h"
#include "fs/control/control.h"
#include "tests/fs/peer.h"
#include "tests/fuzz/staged.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { PEERS = 3, OPEN = 16 };
/* TOLD: the space whose blocks have token ids */
enum { WIDE, NARROW, TOLD, SPACES };
enum { POOLS = 2 };

/* Seconds without progress after which the daemon counts as hung. */
#define PROGRESS_S 20

struct request {
	uint64_t tag; /* tag of the request; 0: unused entry */
	uint16_t type;
	uint16_t flags;
	bool answered, leases;
	uint32_t space, first;
};

struct player {
	struct peer peer;
	uint32_t spaces[SPACES];
	uint64_t
		headers[SPACES]; /* bytes of the header of the space's blocks */
	struct request requests[OPEN];
	unsigned next;
	uint32_t uid; /* 0: the user who runs the test */
	/* keys that this client has reserved with WIRE_HOLD */
	bool holds[SPACES][KEYS];
};

static struct kv_cache *cache;
static struct kv_control *control;
static struct kv_gate *gate;
static struct player players[PEERS];
static int staging = -1;
static bool narrow_is_new; /* an input has removed the second space */
static char dir[64], path[80], store[80];

static const char *volatile doing;
static volatile int message;

static void stuck(int signal)
{
	char text[80];
	int n = snprintf(text, sizeof(text), "no progress: %s, message %d\n",
			 doing, message);

	(void)signal;
	if (write(STDERR_FILENO, text, (size_t)n) == n)
		abort();
	_exit(1);
}

/* Restart the watchdog for the operation @what. */
static void watch(const char *what)
{
	doing = what;
	alarm(PROGRESS_S);
}

static void retire(void *arg, uint32_t id)
{
	(void)arg;
	if (control)
		kv_control_retire(control, id);
}

static void tear_down(void)
{
	char command[100];

	watch("the end");
	kv_control_stop(control);
	control = NULL;
	kv_cache_close(cache);
	close(staging);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	if (system(command) != 0)
		fprintf(stderr, "%s: is left behind\n", dir);
}

static void make_daemon(void)
{
	struct kv_cache_config config = {.store = store,
					 .dram = 16 << 20,
					 .ssd = 64 << 20,
					 .ssd_given = true,
					 .segment = 8 << 20,
					 .hugepages = KV_HUGE_OFF,
					 .evict = "lru",
					 .retire = retire};
	static const struct kv_rules rules = {.mode = 01777};
	char *why = NULL;

	strcpy(dir, "/tmp/kvfs-clients-XXXXXX");
	fuzz_must(mkdtemp(dir) && chmod(dir, 0711) == 0);
	snprintf(store, sizeof(store), "%s/store", dir);
	snprintf(path, sizeof(path), "%s/control", dir);
	signal(SIGALRM, stuck);
	fuzz_must(kv_gate_start(&gate) == 0);
	fuzz_must(kv_cache_open(&config, &cache, &why) == 0);
	fuzz_must(kv_control_start(cache, &rules, gate, path, NULL, NULL,
				   &control, &why) == 0);
	staging = make_staging();
	atexit(tear_down);
}

/* Give the second space quotas, so that it is short of room in both tiers. */
static void limit(struct kv_space *space)
{
	struct kv_quota quota = {.quota_dram = 8 << 15, .quota_ssd = 5 << 15};

	fuzz_must(kv_space_set_quota(cache, space, NULL, &quota) == 0);
}

/* Set the uid of this thread only; the daemon asks for it on connect. */
static void connect_as(struct player *player)
{
	const bool root = getuid() == 0;

	watch("a connection");
	if (root)
		fuzz_must(syscall(SYS_setresuid, -1, player->uid, -1) == 0);
	fuzz_must(peer_connect(&player->peer, path));
	if (root)
		fuzz_must(syscall(SYS_setresuid, -1, 0, -1) == 0);
}

static void join(struct player *player)
{
	static const char *const names[SPACES] = {"wide", "narrow", "told"};
	struct wire_staging all = {STAGING};
	struct peer *p = &player->peer;

	memset(player->requests, 0, sizeof(player->requests));
	memset(player->holds, 0, sizeof(player->holds));
	connect_as(player);
	fuzz_must(peer_hello(p) == 0);
	for (unsigned i = 0; i < SPACES; i++) {
		fuzz_must(peer_space(p, names[i],
				     i == TOLD ? told_layout : layout,
				     WIRE_SPACE_CREATE | WIRE_SPACE_SHARED,
				     0777) == 0);
		player->spaces[i] = p->space;
		player->headers[i] = p->header;
	}
	fuzz_must(peer_call(p,
			    &(struct wire_header){.type = WIRE_STAGING,
						  .count = 1},
			    &all, sizeof(all), staging) == 0);
}

/* Return the index of the client's space with the id @space. */
static unsigned space_at(const struct player *player, uint32_t space)
{
	unsigned i = 0;

	while (i < SPACES - 1 && player->spaces[i] != space)
		i++;
	return i;
}

static void check_bytes(struct player *player, const struct request *request)
{
	struct peer *p = &player->peer;
	struct wire_place *places = PEER_ITEMS(p, struct wire_place);
	const uint32_t first = request->first;

	p->header = player->headers[space_at(player, request->space)];
	for (uint32_t i = 0; i < PEER_HEADER(p)->count; i++)
		if (places[i].status == 0)
			fuzz_must(peer_right(p, i, first + i));
}

/* Note for each key whether the client now has a lease that it must release. */
static void note_statuses(struct player *player, struct request *request)
{
	struct peer *p = &player->peer;
	const struct wire_status *statuses = PEER_ITEMS(p, struct wire_status);
	bool *holds = player->holds[space_at(player, request->space)];

	for (uint32_t i = 0; i < PEER_HEADER(p)->count; i++)
		if (statuses[i].status == 0 && request->type == WIRE_RESERVE)
			holds[request->first + i] = request->flags & WIRE_HOLD;
		else if (request->type == WIRE_SAVE_PAGES ||
			 request->flags & WIRE_FRESH)
			request->leases |= statuses[i].status == 0 &&
					   request->flags & WIRE_HOLD;
		else if (statuses[i].status == 0)
			request->leases |= holds[request->first + i];
}

static void note_reply(struct player *player, struct request *request)
{
	struct wire_header *header = PEER_HEADER(&player->peer);

	fuzz_must(header->flags == WIRE_REPLY && !request->answered);
	request->answered = true;
	if (header->status)
		return;
	if (header->type == WIRE_ACQUIRE)
		check_bytes(player, request);
	if (header->type == WIRE_TOKEN_IDS)
		check_tokens(&player->peer, request->first);
	if (header->type == WIRE_RESERVE || header->type == WIRE_SAVE ||
	    header->type == WIRE_SAVE_PAGES)
		note_statuses(player, request);
}

/* Handle one message from the daemon. */
static void take_in(struct player *player)
{
	struct peer *p = &player->peer;
	struct wire_header *header = PEER_HEADER(p);

	fuzz_must(peer_receive(p, -1) > 0);
	if (header->type == WIRE_SEGMENT || header->type == WIRE_RETIRE) {
		fuzz_must(peer_note_segment(p));
		return;
	}
	for (unsigned i = 0; i < OPEN; i++) {
		struct request *request = &player->requests[i];

		if (request->tag && request->tag == header->tag) {
			note_reply(player, request);
			return;
		}
	}
	fuzz_must(!"a reply to nothing");
}

static void await(struct player *player, const struct request *request)
{
	message = request->type;
	watch("an answer");
	while (!request->answered)
		take_in(player);
}

static void end_request(struct player *player, struct request *request)
{
	if (!request->tag)
		return;
	if (!request->answered)
		peer_cancel(&player->peer, request->tag);
	await(player, request);
	if (request->leases)
		peer_release(&player->peer, request->tag);
	request->tag = 0;
}

static struct request *post_with(struct player *player,
				 const struct wire_header *header,
				 const void *items, size_t bytes, int fd)
{
	struct request *request = &player->requests[player->next++ % OPEN];

	end_request(player, request);
	*request = (struct request){
		.type = header->type,
		.flags = header->flags,
		.space = header->space,
	};
	message = header->type;
	watch("a message is taken in");
	request->tag = peer_send(&player->peer, header, items, bytes, fd);
	fuzz_must(request->tag);
	return request;
}

static struct request *post(struct player *player,
			    const struct wire_header *header, const void *items,
			    size_t bytes)
{
	return post_with(player, header, items, bytes, -1);
}

/* ---- what a client does next, as the fuzzer's input selects ---- */

struct move {
	struct fuzz *input;
	struct player *player;
	/* @n keys from number @first on */
	uint32_t space, first, n;
	bool told; /* true: the space keeps token ids */
};

static struct wire_header about(const struct move *m, enum wire_type type)
{
	return (struct wire_header){
		.type = (uint16_t)type, .count = m->n, .space = m->space};
}

static void move_keys(const struct move *m, struct wire_header header, bool now)
{
	struct wire_key keys[KEYS];
	struct request *request;

	peer_keys(keys, m->first, m->n);
	request = post(m->player, &header, keys, m->n * sizeof(*keys));
	request->first = m->first;
	request->leases = header.type == WIRE_ACQUIRE;
	if (now)
		await(m->player, request);
}

static void move_reserve(const struct move *m)
{
	struct wire_header header = about(m, WIRE_RESERVE);

	header.flags = fuzz_byte(m->input) & (WIRE_MUST | WIRE_HOLD);
	move_keys(m, header, true);
}

/* Return WIRE_WITH_IDS for most saves to spaces with token ids, and for few
 * other saves. */
static uint16_t ids_flag(const struct move *m, uint8_t how)
{
	const bool with = m->told != (how >= 250);

	return with ? WIRE_WITH_IDS : 0;
}

/* Save blocks, each with the previous key or with any key as its parent. */
static void move_save(const struct move *m)
{
	const uint8_t how = fuzz_byte(m->input);
	struct wire_header header = about(m, WIRE_SAVE);
	struct wire_save saves[KEYS] = {0};
	struct wire_key keys[KEYS], parent;
	struct request *request;

	header.flags = ids_flag(m, how);
	if (how & 4)
		header.flags |= WIRE_FRESH | (how & 8 ? WIRE_MUST : 0) |
				(how & 16 ? WIRE_HOLD : 0);
	peer_keys(keys, m->first, m->n);
	for (uint32_t i = 0; i < m->n; i++) {
		uint32_t of = how & 1 ? how % KEYS : m->first + i + KEYS - 1;

		peer_keys(&parent, of % KEYS, 1);
		memcpy(saves[i].key, keys[i].key, sizeof(saves[i].key));
		memcpy(saves[i].parent, parent.key, sizeof(parent.key));
		saves[i].len = saves[i].parent_len = 32;
		saves[i].position = m->first + i;
		saves[i].tokens = m->told ? tokens_said(m->first + i, how) : 0;
		saves[i].offset = staged_at(m->told, m->first + i);
	}
	request = post(m->player, &header, saves, m->n * sizeof(*saves));
	request->first = m->first;
	if (how & 2)
		await(m->player, request);
}

static void move_acquire(const struct move *m)
{
	const uint8_t how = fuzz_byte(m->input);
	struct wire_header header = about(m, WIRE_ACQUIRE);

	header.flags = how & (WIRE_WAIT_SAVING | WIRE_RESIDENT);
	header.arg = how & 1 ? 0 : (how + 1u) * 20000u;
	move_keys(m, header, !(how & 1));
}

static void move_flush(const struct move *m)
{
	const uint8_t how = fuzz_byte(m->input);
	struct wire_header header = about(m, WIRE_FLUSH);
	struct request *request;

	header.arg = how & 1 ? 0 : (how + 1u) * 100000u;
	if (how & 2) {
		move_keys(m, header, how & 4);
		return;
	}
	header.count = 0;
	request = post(m->player, &header, NULL, 0);
	if (how & 4)
		await(m->player, request);
}

static void move_end_request(const struct move *m)
{
	end_request(m->player,
		    &m->player->requests[fuzz_byte(m->input) % OPEN]);
}

static void move_snapshot(const struct move *m)
{
	struct wire_header header = about(m, WIRE_PICK);
	struct wire_key keys[KEYS];
	struct wire_pick picks[KEYS] = {0};
	struct {
		struct wire_snapshot head;
		char name;
	} named = {.head = {.id = 1, .blocks = m->n}};

	header.arg = 1;
	peer_keys(keys, m->first, m->n);
	for (uint32_t i = 0; i < m->n; i++) {
		memcpy(picks[i].key, keys[i].key, sizeof(picks[i].key));
		picks[i].len = 32;
		picks[i].position = i;
	}
	await(m->player,
	      post(m->player, &header, picks, m->n * sizeof(*picks)));
	header = about(m, WIRE_SNAPSHOT);
	header.count = 1;
	named.name = (char)('a' + fuzz_byte(m->input) % 4);
	await(m->player,
	      post(m->player, &header, &named, sizeof(named.head) + 1));
}

static void move_snapshot_drop(const struct move *m)
{
	struct wire_header header = about(m, WIRE_SNAPSHOT_DROP);
	char name = (char)('a' + fuzz_byte(m->input) % 4);

	header.count = 1;
	await(m->player, post(m->player, &header, &name, 1));
}

static void move_clear(const struct move *m)
{
	struct wire_header header = about(m, WIRE_CLEAR);

	header.count = 0;
	await(m->player, post(m->player, &header, NULL, 0));
}

static void leave(struct player *player)
{
	peer_close(&player->peer);
}

static void move_again(const struct move *m)
{
	leave(m->player);
	join(m->player);
}

/* Send a message with any header and items, whose length is sometimes right. */
static void send_nonsense(struct peer *p, struct fuzz *input)
{
	const uint8_t how = fuzz_byte(input);
	struct peer_message m = {
		.header = {
			.type = fuzz_byte(input) % 32,
			.flags = how & 1 ? 0 : fuzz_byte(input),
			.count = fuzz_byte(input) % 16,
			.tag = fuzz_byte(input) % 32,
			.space = fuzz_byte(input) % 4,
			.arg = fuzz_byte(input),
		}};
	size_t n = how & 2 ? m.header.count * sizeof(struct wire_key)
			   : fuzz_byte(input);

	peer_keys((struct wire_key *)m.items, fuzz_byte(input) % KEYS, 16);
	for (unsigned i = how & 4 ? fuzz_byte(input) % 8 : 0; i > 0; i--)
		m.items[fuzz_byte(input)] = fuzz_byte(input);
	peer_raw(p, &m, sizeof(m.header) + n, staging, how >> 6);
}

/* Send nonsense, which the daemon may or may not answer.  The daemon drops the
 * leases of its sender, but no leases of other clients. */
static void move_nonsense(const struct move *m)
{
	struct player *player = m->player;
	const uint8_t how = fuzz_byte(m->input);

	if (player == &players[PEERS - 1])
		return;
	watch("nonsense");
	if (how & 1) {
		leave(player);
		connect_as(player);
	}
	for (unsigned i = 0; i <= how / 2 % 8; i++)
		send_nonsense(&player->peer, m->input);
	leave(player);
	join(player);
}

static void move_pin(const struct move *m)
{
	struct wire_header header = about(m, WIRE_PIN);

	header.arg = fuzz_byte(m->input) & 1;
	move_keys(m, header, true);
}

static void move_list(const struct move *m)
{
	struct wire_header header = about(m, WIRE_LIST);
	struct wire_list list = {.cursor = fuzz_byte(m->input) % 3, .max = 64};

	header.count = 1;
	await(m->player, post(m->player, &header, &list, sizeof(list)));
}

/* Lend the daemon the staging memory as a pool of one page for each block. */
static void move_lend(const struct move *m)
{
	struct wire_header header = about(m, WIRE_POOL);
	struct {
		struct wire_pool pool;
		struct wire_stride stride;
	} lent = {
		.pool = {.id = fuzz_byte(m->input) % POOLS,
			 .pages_per_block = 1,
			 .pages = KEYS,
			 .bytes = LENT},
		.stride = {.block_stride = PAYLOAD,
			   .bytes = PAYLOAD,
			   .count = 1,
			   .segment_stride = PAYLOAD},
	};

	header.count = 1;
	await(m->player,
	      post_with(m->player, &header, &lent, sizeof(lent), staging));
}

static void move_take_back(const struct move *m)
{
	struct wire_header header = about(m, WIRE_POOL_CLOSE);

	header.count = 0;
	header.arg = fuzz_byte(m->input) % POOLS;
	fuzz_must(peer_send(&m->player->peer, &header, NULL, 0, -1));
}

static void move_save_lent(const struct move *m)
{
	const uint8_t how = fuzz_byte(m->input);
	struct wire_header header = about(m, WIRE_SAVE_PAGES);
	struct wire_save_pages *head;
	struct wire_save *saves;
	struct wire_key keys[KEYS];
	struct request *request;
	uint8_t text[sizeof(*head) + KEYS * (sizeof(*saves) + 8)] = {0};
	uint64_t page;

	head = (struct wire_save_pages *)text;
	*head = (struct wire_save_pages){
		.pool = how % POOLS,
		.n = m->n,
		.lent = how & 32 && how & 64 ? TAKEN_BACK : LENT};
	saves = (struct wire_save *)(head + 1);
	peer_keys(keys, m->first, m->n);
	for (uint32_t i = 0; i < m->n; i++) {
		memcpy(saves[i].key, keys[i].key, sizeof(saves[i].key));
		saves[i].len = 32;
		saves[i].position = m->first + i;
		saves[i].tokens = m->told ? tokens_said(m->first + i, how) : 0;
		saves[i].offset = ids_at(m->told, m->first + i);
		page = m->first + i;
		memcpy((uint8_t *)(saves + m->n) + 8 * i, &page, 8);
	}
	header.count = (uint32_t)(m->n * (sizeof(*saves) + 8));
	header.flags = (how & (WIRE_MUST | WIRE_HOLD)) | ids_flag(m, how);
	request = post(m->player, &header, text, sizeof(*head) + header.count);
	request->first = m->first;
	if (how & 128)
		await(m->player, request);
}

static void move_space_remove(const struct move *m)
{
	struct wire_header header = about(m, WIRE_SPACE_REMOVE);

	header.count = 0;
	await(m->player, post(m->player, &header, NULL, 0));
	narrow_is_new = true;
}

/* Demote blocks from DRAM, so that the next reader needs the SSD. */
static void move_demote(const struct move *m)
{
	struct kv_space *space = kv_space_by_id(cache, m->space);
	struct kv_key key = {.len = 32};
	struct kv_block *block;
	struct wire_key name;

	for (uint32_t i = 0; space && i < m->n; i++) {
		peer_keys(&name, m->first + i, 1);
		memcpy(key.b, name.key, sizeof(key.b));
		if (kv_block_get(cache, space, &key, &block) < 0)
			continue;
		kv_block_demote_try(cache, block);
		kv_block_put(cache, block);
	}
	kv_space_put(space);
}

/* Ask for the token ids of blocks, mostly of recently saved ones, in any
 * tier. */
static void move_tell(const struct move *m)
{
	const uint8_t how = fuzz_byte(m->input);
	struct move there = *m;

	if (how < 240) {
		there.space = m->player->spaces[TOLD];
		there.told = true;
	}
	if (how & 1) {
		move_reserve(&there);
		move_save(&there);
	}
	if (how & 2)
		move_keys(&there, about(&there, WIRE_FLUSH), true);
	if (how & 4)
		move_demote(&there);
	move_keys(&there, about(&there, WIRE_TOKEN_IDS), how & 8);
}

static void move_new(const struct move *m)
{
	switch (fuzz_byte(m->input) % 12) {
	case 0:
		return move_list(m);
	case 1:
	case 2:
		return move_lend(m);
	case 3:
		return move_take_back(m);
	case 4:
		if (fuzz_byte(m->input) < 32)
			return move_space_remove(m);
		/* fall through */
	case 5:
	case 6:
		return move_tell(m);
	case 7:
		return move_demote(m);
	default:
		return move_save_lent(m);
	}
}

static void move_once(const struct move *m, uint8_t what)
{
	static const enum wire_type plain[] = {WIRE_DROP, WIRE_EVICT,
					       WIRE_PROBE};

	switch (what % 16) {
	case 0:
		return move_new(m);
	case 1:
		return move_reserve(m);
	case 2:
	case 3:
		return move_save(m);
	case 4:
		return move_acquire(m);
	case 5:
		return move_flush(m);
	case 6:
		return move_end_request(m);
	case 7:
		return move_snapshot(m);
	case 8:
		return move_snapshot_drop(m);
	case 9:
		return move_pin(m);
	case 10:
		if (fuzz_byte(m->input) < 32)
			return move_clear(m);
		return move_keys(m, about(m, WIRE_PREFETCH), false);
	case 11:
		if (fuzz_byte(m->input) < 32)
			return move_again(m);
		/* fall through */
	case 12:
		if (fuzz_byte(m->input) < 64)
			return move_nonsense(m);
		/* Let the daemon's other threads run. */
		usleep(fuzz_byte(m->input) * 4u);
		return;
	default:
		return move_keys(m, about(m, plain[what % 16 - 13]), true);
	}
}

static void move(struct fuzz *input)
{
	const uint8_t what = fuzz_byte(input), who = fuzz_byte(input);
	const uint8_t which = fuzz_byte(input);
	struct move m = {.input = input, .player = &players[who % PEERS]};

	m.space = m.player->spaces[who / PEERS % SPACES];
	m.told = who / PEERS % SPACES == TOLD;
	m.first = which % KEYS;
	m.n = 1 + which / KEYS % KV_MIN(KEYS - m.first, 4u);
	move_once(&m, what);
}

/* ---- checks when all clients have left ---- */

static bool quiet(void)
{
	struct kv_cache_stats stats;

	kv_cache_stats(cache, &stats);
	return !stats.leases && !stats.saving && !stats.dirty_blocks;
}

static void wake(struct kv_flush *flush, int status)
{
	(void)status;
	kv_waiter_wake(flush->arg);
}

/* Flush everything.  Some blocks find no room on SSD, but no flush may hang. */
static void sync_all(void)
{
	struct kv_space *space;

	for (uint32_t id = 0; (space = kv_space_next(cache, id));) {
		struct kv_waiter waiter = KV_WAITER_INIT;
		struct kv_flush flush = {.done = wake, .arg = &waiter};

		id = kv_space_stat(cache, space).id;
		kv_flush_submit(cache, space, &flush);
		kv_waiter_wait(&waiter);
	}
}

static void empty_all(void)
{
	struct kv_space *space;

	for (uint32_t id = 0; (space = kv_space_next(cache, id));) {
		uint64_t *ids;
		size_t n;

		id = kv_space_stat(cache, space).id;
		fuzz_must(kv_snapshot_list(cache, space, &ids, &n) == 0);
		for (size_t i = 0; i < n; i++)
			kv_snapshot_drop(cache, ids[i]);
		free(ids);
		fuzz_must(kv_space_clear(cache, space) == 0);
		fuzz_must(kv_space_stat(cache, space).blocks == 0);
	}
}

static void settle(void)
{
	watch("all is given back and written");
	while (!quiet())
		usleep(200);
	watch("a sync");
	sync_all();
	kv_lock(cache);
	kv_arena_check_locked(cache);
	kv_unlock(cache);
	watch("a clear");
	empty_all();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz input = {data, size};

	if (!cache) {
		make_daemon();
		for (unsigned i = 0; i < PEERS; i++)
			players[i].uid = getuid() == 0 ? 1001 + i : 0;
		join(&players[0]);
		limit(kv_space_find(cache, "narrow"));
		leave(&players[0]);
	}
	for (unsigned i = 0; i < PEERS; i++)
		join(&players[i]);
	if (narrow_is_new)
		limit(kv_space_find(cache, "narrow"));
	narrow_is_new = false;
	while (input.left)
		move(&input);
	for (unsigned i = 0; i < PEERS; i++)
		leave(&players[i]);
	settle();
	alarm(0);
	return 0;
}
