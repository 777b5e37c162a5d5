/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - a libkvfs client in one space, with a pool of some pages; and the loop of a
 * program that works until SIGTERM.
 *
 * An alarm kills a program that does not end within 15 s of SIGTERM, so that the test
 * notices the hang.
 */
#ifndef KV_TESTS_CRASH_CLIENT_H
#define KV_TESTS_CRASH_CLIENT_H

#include <signal.h>

#include "tests/crash/content.h"

#define CLIENT_PAGES 16

struct client {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool; /* NULL if the space has no layout */
	uint8_t *memory;
	uint64_t payload;
};

static volatile sig_atomic_t client_stop;

static inline void client_on_term(int signal)
{
	(void)signal;
	client_stop = 1;
	alarm(15);
}

static inline void client_until_term(void)
{
	struct sigaction action = {.sa_handler = client_on_term,
				   .sa_flags = SA_RESTART};

	sigaction(SIGTERM, &action, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
}

/* Exit 3 if the call failed because there is no daemon, else 1. */
static inline void client_must(int r, const char *what)
{
	if (r >= 0)
		return;
	printf("FAILED: %s: %s\n", what, strerror(-r));
	exit(r == -ENOTCONN ? 3 : 1);
}

static inline void client_open_pool(struct client *c)
{
	kvfs_view views[2] = {
		{"k", NULL, c->payload, c->payload / 2, 1, 0},
		{"v", NULL, c->payload, c->payload / 2, 1, 0},
	};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .space = c->space,
			       .views = views,
			       .n_views = 2,
			       .pages = CLIENT_PAGES,
			       .pages_per_block = 1};

	c->memory = malloc(CLIENT_PAGES * c->payload);
	if (c->memory == NULL)
		client_must(-ENOMEM, "memory");
	memset(c->memory, 0xee, CLIENT_PAGES * c->payload);
	views[0].base = c->memory;
	views[1].base = c->memory + c->payload / 2;
	client_must(kvfs_pool_register(c->session, &desc, &c->pool), "pool");
}

static inline void client_close(struct client *c)
{
	kvfs_pool_close(c->pool);
	kvfs_space_close(c->space);
	kvfs_close(c->session);
	free(c->memory);
}

/* Open the space @letter at @path, a socket or a mount; make it if it is missing.  Wait
 * until the daemon has answered. */
static inline void client_open(struct client *c, const char *path, char letter)
{
	const char name[2] = {letter, '\0'};
	char layout[256];
	int r = -ENOTCONN;

	memset(c, 0, sizeof(*c));
	c->payload = content_payload(content_id(letter, 0, 0), 0);
	content_layout_text(c->payload, layout);
	client_must(kvfs_open(path, &c->session), "session");
	for (int i = 0; i < 1000 && r == -ENOTCONN; i++) {
		client_must(client_stop ? -ENOTCONN : 0, "session");
		if (kvfs_connected(c->session) == 1)
			r = kvfs_space_open(c->session, name,
					    letter == 'c' ? NULL : layout,
					    KVFS_CREATE | 0777, &c->space);
		/* If the daemon does not answer within a second, the library
		 * opens the space without it, and acquires may fail with
		 * ENOTCONN. */
		if (r == 0)
			r = kvfs_space_owner(c->space, NULL, NULL);
		if (r == -ENOTCONN) {
			kvfs_space_close(kv_steal(c->space));
			usleep(10000);
		}
	}
	client_must(r, "space");
	if (letter != 'c')
		client_open_pool(c);
}

static inline uint8_t *client_page(struct client *c, size_t page)
{
	return c->memory + page * c->payload;
}

/* Save blocks @ids (at most CLIENT_PAGES) of generations @gens. */
static inline int client_save(struct client *c, const uint64_t *ids,
			      const uint64_t *gens, size_t n,
			      kvfs_xfer **ret_xfer)
{
	kvfs_key keys[CLIENT_PAGES];
	kvfs_meta meta[CLIENT_PAGES];
	int64_t pages[CLIENT_PAGES];

	memset(meta, 0, sizeof(meta));
	for (size_t i = 0; i < n; i++) {
		keys[i] = content_key(ids[i]);
		meta[i].position = (uint16_t)ids[i];
		meta[i].tokens = CONTENT_TOKENS;
		pages[i] = (int64_t)i;
		content_fill(client_page(c, i), ids[i], gens[i]);
	}
	return kvfs_save(c->pool, c->space, keys, meta, n, pages, NULL,
			 ret_xfer);
}

static inline int client_acquire(struct client *c, const uint64_t *ids,
				 size_t n, kvfs_lease **ret_lease)
{
	kvfs_key keys[512];
	kvfs_query query = {c->space, keys, n};

	for (size_t i = 0; i < n; i++)
		keys[i] = content_key(ids[i]);
	return kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = 5 * SECOND),
			    ret_lease);
}

/* Wait until everything in the space is durable.  Return 0 or an error. */
static inline int client_flush(struct client *c)
{
	kvfs_xfer *xfer;
	long r;

	r = kvfs_flush(c->space, KVFS_DURABLE, NULL, &xfer);
	if (r < 0)
		return (int)r;
	r = kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND);
	if (r >= 0)
		r = kvfs_xfer_status(xfer, 0);
	kvfs_xfer_free(xfer);
	return (int)r;
}

static inline long client_random(uint64_t *seed, long below)
{
	*seed += 1;
	return (long)(content_mix(*seed) % (uint64_t)below);
}

#endif
