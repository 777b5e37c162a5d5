/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_token_ids.c - token ids of blocks: from a client's staging into the block and the
 * index, and back to clients that may read the space.
 *
 * OWNS      a daemon with an SSD tier for all tests; a client for each.
 *
 * LOCKING   none.
 */
#include <sys/wait.h>

#include "common/block.h"
#include "tests/fs/daemon.h"
#include "tests/fs/peer.h"

#define LAYOUT                                                                \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]}]," \
	"\"tokens\":4,\"token_ids\":true}"
/* token ids follow the tensors in staging memory */
#define IDS_AT DAEMON_PAYLOAD

static struct daemon d;

static int start(void **state)
{
	(void)state;
	daemon_start(&d, 64 << 20);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

static void connect_to(struct peer *p, const char *space)
{
	assert_true(peer_connect(p, d.path));
	assert_int_equal(peer_hello(p), 0);
	assert_int_equal(peer_space(p, space, LAYOUT, WIRE_SPACE_CREATE, 0700),
			 0);
	assert_int_equal(peer_staging(p, 16 * DAEMON_PAYLOAD), 0);
}

/* Write @n token ids from @first on, with the extras "xyz", at offset @at of
 * the staging memory. */
static void write_ids(struct peer *p, uint64_t at, uint32_t n, uint32_t first)
{
	struct kv_token_ids head = {.n = n, .extras_len = 3};

	memcpy(p->staging + at, &head, sizeof(head));
	at += sizeof(head);
	for (uint32_t i = 0; i < n; i++, at += 4)
		memcpy(p->staging + at, &(uint32_t){first + i}, 4);
	memcpy(p->staging + at, "xyz", 3);
}

static struct wire_save save_of(uint32_t key, uint32_t tokens)
{
	struct wire_save save = {.len = 32, .tokens = tokens};
	struct wire_key name;

	peer_keys(&name, key, 1);
	memcpy(save.key, name.key, 32);
	return save;
}

static int send_save(struct peer *p, struct wire_save save, uint16_t flags)
{
	return peer_saved(p, peer_send(p,
				       &(struct wire_header){.type = WIRE_SAVE,
							     .flags = flags,
							     .count = 1},
				       &save, sizeof(save), -1));
}

/* Save block @key, with the token ids that are in the staging memory. */
static int save(struct peer *p, uint32_t key, uint32_t tokens, uint16_t flags)
{
	int r = peer_do(p, WIRE_RESERVE, key, 1);

	return r < 0 ? r : send_save(p, save_of(key, tokens), flags);
}

static int ask(struct peer *p, uint32_t first, uint32_t n)
{
	struct wire_key keys[WIRE_BATCH];

	peer_keys(keys, first, n);
	return peer_call(
		p, &(struct wire_header){.type = WIRE_TOKEN_IDS, .count = n},
		keys, n * sizeof(*keys), -1);
}

/* Return the number of blocks whose token ids the reply has. */
static unsigned told(struct peer *p)
{
	const uint8_t *at = PEER_ITEMS(p, uint8_t);
	const uint8_t *end = at + PEER_HEADER(p)->count;
	unsigned n = 0;

	for (; at < end; n++)
		at += ((const struct wire_tokens *)at)->bytes;
	assert_ptr_equal(at, end);
	return n;
}

/* Return the first token id of block @key if the block has @n ids and the
 * extras; else an error. */
static long first_id(struct peer *p, uint32_t key, uint32_t n)
{
	const struct wire_tokens *tokens = PEER_ITEMS(p, struct wire_tokens);
	const uint32_t *ids = (const uint32_t *)(tokens + 1);
	int r = ask(p, key, 1);

	if (r < 0)
		return r;
	assert_int_equal(told(p), 1);
	if (tokens->status < 0)
		return tokens->status;
	assert_int_equal(tokens->n, n);
	assert_int_equal(tokens->extras_len, 3);
	assert_memory_equal(ids + n, "xyz", 3);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(ids[i], ids[0] + i);
	return ids[0];
}

static void a_save_without_them_is_einval(void **state)
{
	struct peer p;

	(void)state;
	connect_to(&p, "without");
	write_ids(&p, IDS_AT, 4, 1000);
	assert_int_equal(save(&p, 1, 4, 0), -EINVAL);
	assert_int_equal(peer_probe(&p, 1), WIRE_ABSENT);
	write_ids(&p, IDS_AT, 3, 1000);
	assert_int_equal(save(&p, 1, 4, WIRE_WITH_IDS), -EINVAL);
	write_ids(&p, IDS_AT, 5, 1000);
	assert_int_equal(save(&p, 1, 4, WIRE_WITH_IDS), -EINVAL);
	assert_int_equal(save(&p, 1, 5, WIRE_WITH_IDS), -EINVAL);
	write_ids(&p, IDS_AT, 0, 1000);
	assert_int_equal(save(&p, 1, 0, WIRE_WITH_IDS), -EINVAL);
	memset(p.staging + IDS_AT, 0xff, 8);
	assert_int_equal(save(&p, 1, 4, WIRE_WITH_IDS), -EINVAL);
	assert_int_equal(first_id(&p, 1, 4), -ENOENT);
	assert_int_equal(daemon_wait_idle(&d) >= 0, 1);
	peer_close(&p);
}

static void they_end_inside_the_staging(void **state)
{
	struct wire_save at_end = save_of(2, 4);
	struct peer p;

	(void)state;
	connect_to(&p, "end");
	at_end.offset = p.staging_bytes - DAEMON_PAYLOAD;
	assert_int_equal(peer_do(&p, WIRE_RESERVE, 2, 1), 0);
	assert_int_equal(send_save(&p, at_end, WIRE_WITH_IDS), -EINVAL);
	/* The number of the ids lies inside the staging memory, but the ids do
	 * not. */
	at_end.offset -= 8;
	write_ids(&p, 0, 4, 1); /* write token ids, with any values */
	memcpy(p.staging + p.staging_bytes - 8, &(struct kv_token_ids){.n = 4},
	       8);
	assert_int_equal(peer_do(&p, WIRE_RESERVE, 2, 1), 0);
	assert_int_equal(send_save(&p, at_end, WIRE_WITH_IDS), -EINVAL);
	assert_int_equal(daemon_stats(&d).saving, 0);
	peer_close(&p);
}

static void other_spaces_take_none(void **state)
{
	struct peer p;

	(void)state;
	daemon_peer(&d, &p, 0700);
	write_ids(&p, IDS_AT, 4, 1000);
	assert_int_equal(save(&p, 3, 0, WIRE_WITH_IDS), -EINVAL);
	assert_int_equal(save(&p, 3, 0, 0), 0);
	assert_int_equal(ask(&p, 3, 1), -EINVAL);
	peer_close(&p);
}

static void they_are_told_before_and_after_a_flush(void **state)
{
	struct peer p;

	(void)state;
	connect_to(&p, "told");
	write_ids(&p, IDS_AT, 4, 1000);
	assert_int_equal(save(&p, 1, 4, WIRE_WITH_IDS), 0);
	write_ids(&p, IDS_AT, 2, 2000);
	assert_int_equal(save(&p, 2, 2, WIRE_WITH_IDS), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(first_id(&p, 1, 4), 1000);
		assert_int_equal(first_id(&p, 2, 2), 2000);
		assert_int_equal(first_id(&p, 9, 4), -ENOENT);
		assert_int_equal(peer_do(&p, WIRE_FLUSH, 1, 2), 0);
	}
	assert_int_equal(peer_do(&p, WIRE_EVICT, 1, 1), 0);
	assert_int_equal(first_id(&p, 1, 4), -ENOENT);
	assert_int_equal(first_id(&p, 2, 2), 2000);
	peer_close(&p);
}

static void pages_that_are_lent_have_them(void **state)
{
	struct {
		struct wire_pool pool;
		struct wire_stride stride;
	} lend = {{.id = 1,
		   .pages_per_block = 1,
		   .pages = 4,
		   .bytes = 4 * DAEMON_PAYLOAD},
		  {0, DAEMON_PAYLOAD, DAEMON_PAYLOAD, 1, 0}};
	struct {
		struct wire_save_pages what;
		struct wire_save block;
		uint64_t page;
	} m = {{1, 1, 0}, save_of(6, 4), 2};
	const uint32_t lent = WIRE_LENT;
	struct peer p;
	int fd = memfd_create("lent", MFD_CLOEXEC);

	(void)state;
	connect_to(&p, "lent");
	assert_int_equal(ftruncate(fd, 4 * DAEMON_PAYLOAD), 0);
	assert_int_equal(fallocate(fd, 0, 0, 4 * DAEMON_PAYLOAD), 0);
	assert_int_equal(
		peer_call(&p,
			  &(struct wire_header){.type = WIRE_POOL, .count = 1},
			  &lend, sizeof(lend), fd),
		0);
	memcpy(p.staging, &lent, 4);
	write_ids(&p, 64, 4, 9000);
	m.block.offset = 64;
	for (uint16_t flags = 0; flags <= WIRE_WITH_IDS; flags += WIRE_WITH_IDS)
		assert_int_equal(
			peer_saved(
				&p,
				peer_send(&p,
					  &(struct wire_header){
						  .type = WIRE_SAVE_PAGES,
						  .flags = flags,
						  .count = sizeof(m.block) + 8},
					  &m, sizeof(m), -1)),
			flags ? 0 : -EINVAL);
	assert_int_equal(first_id(&p, 6, 4), 9000);
	m.block = save_of(7, 4);
	m.block.offset = p.staging_bytes - 4;
	assert_int_equal(
		peer_saved(&p, peer_send(&p,
					 &(struct wire_header){
						 .type = WIRE_SAVE_PAGES,
						 .flags = WIRE_WITH_IDS,
						 .count = sizeof(m.block) + 8},
					 &m, sizeof(m), -1)),
		-EINVAL);
	close(fd);
	peer_close(&p);
}

/* A reply has the token ids of as many blocks as fit into it, and of at least
 * one. */
static void a_long_answer_is_cut_off(void **state)
{
	static const char layout[] =
		"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\","
		"\"shape\":[65536]}],\"tokens\":8192,\"token_ids\":true}";
	struct peer p;

	(void)state;
	assert_true(peer_connect(&p, d.path));
	assert_int_equal(peer_hello(&p), 0);
	assert_int_equal(
		peer_space(&p, "long", layout, WIRE_SPACE_CREATE, 0700), 0);
	assert_int_equal(peer_staging(&p, 16 * DAEMON_PAYLOAD), 0);
	for (uint32_t key = 1; key <= 4; key++) {
		uint32_t n = key <= 2 ? 8192 : 5000;

		write_ids(&p, IDS_AT, n, key * 100000);
		assert_int_equal(save(&p, key, n, WIRE_WITH_IDS), 0);
	}
	assert_int_equal(ask(&p, 1, 4), 0);
	assert_int_equal(told(&p), 1);
	assert_int_equal(ask(&p, 3, 2), 0);
	assert_int_equal(told(&p), 2);
	assert_int_equal(first_id(&p, 2, 8192), 200000);
	peer_close(&p);
}

/* Ask for token ids in another process, as another user. */
static int stranger(uint32_t space)
{
	struct peer p;
	int r;

	if (setresgid(12345, 12345, 12345) < 0 ||
	    setresuid(12345, 12345, 12345) < 0 || !peer_connect(&p, d.path) ||
	    peer_hello(&p) != 0)
		return 1;
	if (peer_space(&p, "theirs", "", 0, 0) == 0)
		return 2;
	p.space = space;
	r = ask(&p, 1, 1);
	return r == -ENOENT ? 0 : 3;
}

static void who_may_not_read_the_space_is_told_nothing(void **state)
{
	struct peer p;
	int status;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	connect_to(&p, "theirs");
	write_ids(&p, IDS_AT, 4, 1000);
	assert_int_equal(save(&p, 1, 4, WIRE_WITH_IDS), 0);
	pid = fork();
	if (pid == 0)
		_exit(stranger(p.space));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(first_id(&p, 1, 4), 1000);
	peer_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_without_them_is_einval),
		cmocka_unit_test(they_end_inside_the_staging),
		cmocka_unit_test(other_spaces_take_none),
		cmocka_unit_test(they_are_told_before_and_after_a_flush),
		cmocka_unit_test(pages_that_are_lent_have_them),
		cmocka_unit_test(a_long_answer_is_cut_off),
		cmocka_unit_test(who_may_not_read_the_space_is_told_nothing),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
