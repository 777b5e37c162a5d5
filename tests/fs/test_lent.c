/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lent.c - which memory a client may lend to the daemon, and messages that
 * save from lent memory.  Wrong messages harm only their sender.
 *
 * OWNS      a daemon for all tests, and the descriptors it makes.
 *
 * LOCKING   none.
 */
#include <sys/eventfd.h>

#include "fs/control/server.h"
#include "tests/fs/daemon.h"

enum { PAGE = 4096, N = 32, BYTES = N * DAEMON_PAYLOAD };

static struct daemon d;

static int start(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

static int memory(uint64_t bytes, bool allocated)
{
	int fd = memfd_create("lent", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (allocated)
		assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
	return fd;
}

static const struct wire_pool whole = {
	.id = 1, .pages_per_block = 1, .pages = N, .bytes = BYTES};
static const struct wire_stride pages = {0, DAEMON_PAYLOAD, DAEMON_PAYLOAD, 1,
					 0};

static int new_of(int fd, const struct wire_pool *pool,
		  const struct wire_stride *stride)
{
	static const struct kv_workers_config config = {"test", 1, 1, 1};
	static struct kv_server server;
	const struct kv_client client = {
		.server = &server, .socket = -1, .pidfd = -1};
	struct kv_lent *lent = NULL;
	int r = kv_lent_new(&client, fd, pool, stride, 1, &lent);

	if (r < 0) {
		assert_null(lent);
		return r;
	}
	assert_int_equal(kv_workers_new(&config, &server.waits), 0);
	kv_lent_put(lent);
	kv_workers_free(server.waits);
	return 0;
}

static void what_is_no_memory_is_refused(void **state)
{
	int fd = open("/proc/self/maps", O_RDONLY);

	(void)state;
	assert_int_equal(new_of(fd, &whole, &pages), -EMEDIUMTYPE);
	close(fd);
}

static void strides_that_end_outside_are_refused(void **state)
{
	static const struct wire_stride wrong[] = {
		{1, DAEMON_PAYLOAD, DAEMON_PAYLOAD, 1, 0},
		{0, DAEMON_PAYLOAD + 1, DAEMON_PAYLOAD, 1, 0},
		{0, DAEMON_PAYLOAD, DAEMON_PAYLOAD, 2, 1},
		{0, DAEMON_PAYLOAD, 0, 1, 0},
		{0, DAEMON_PAYLOAD, DAEMON_PAYLOAD, 0, 0},
		{UINT64_MAX, 1, 1, 1, 0},
		{UINT64_MAX - BYTES, DAEMON_PAYLOAD, DAEMON_PAYLOAD, 1, 0},
		{0, UINT64_MAX, 1, 1, 0},
		{0, UINT64_MAX / 2 + 1, 1, 1, 0},
		{0, 1, UINT64_MAX, 1, 0},
		{0, 1, 1, UINT64_MAX, UINT64_MAX},
		{0, 1, 1, UINT64_MAX, 0},
		{0, 1, UINT64_C(1) << 32, UINT64_C(1) << 32, 0},
	};
	int fd = memory(BYTES, true);

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++)
		assert_int_equal(new_of(fd, &whole, &wrong[i]), -EINVAL);
	close(fd);
}

static void crumbs_are_refused(void **state)
{
	const struct wire_stride crumbs = {0, 16 * PAGE, 1, 16 * PAGE, 1};
	const struct wire_stride few = {0, 64, 1, 64, 1};
	int fd = memory(BYTES, true);

	(void)state;
	assert_int_equal(new_of(fd, &whole, &crumbs), -EINVAL);
	assert_int_equal(new_of(fd, &whole, &few), 0);
	close(fd);
}

static void pools_that_cannot_be_are_refused(void **state)
{
	static const struct wire_pool wrong[] = {
		{1, 0, N, 0, BYTES},
		{1, 1, 0, 0, BYTES},
		{1, 1, N, 0, 0},
		{1, 1, N, UINT64_MAX, BYTES},
		{1, 1, N, UINT64_MAX - BYTES, BYTES},
		{1, 1, N, 0, UINT64_MAX},
		{1, 1, UINT64_MAX, 0, BYTES},
		{1, 1, N + 1, 0, BYTES},
	};
	int fd = memory(BYTES, true);

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++)
		assert_int_equal(new_of(fd, &wrong[i], &pages), -EINVAL);
	close(fd);
}

/* ---- messages that lend a pool and save from its pages ---- */

struct pool_message {
	struct wire_pool pool;
	struct wire_stride stride;
};

static int lend(struct peer *p, uint32_t id, int fd)
{
	struct pool_message m = {whole, pages};

	m.pool.id = id;
	return peer_call(p,
			 &(struct wire_header){.type = WIRE_POOL, .count = 1},
			 &m, sizeof(m), fd);
}

struct save_message {
	struct wire_save_pages what;
	struct wire_save save;
	uint64_t page;
};

static struct save_message message(uint32_t key, uint64_t page)
{
	struct save_message m = {.what = {.pool = 1, .n = 1}, .page = page};
	struct wire_key wire;

	peer_keys(&wire, key, 1);
	memcpy(m.save.key, wire.key, 32);
	m.save.len = 32;
	return m;
}

/* Send a SAVE_PAGES of one block. Return the status of the message if it
 * failed, else of the block. */
static int save(struct peer *p, const struct save_message *m)
{
	const struct wire_header header = {.type = WIRE_SAVE_PAGES,
					   .count = sizeof(m->save) +
						    sizeof(m->page)};
	int r = peer_call(p, &header, m, sizeof(*m), -1);

	return r < 0 ? r : PEER_ITEMS(p, struct wire_status)->status;
}

static uint32_t *word(struct peer *p)
{
	return (uint32_t *)(void *)p->staging;
}

static void what_is_wrong_with_a_save_is_told(void **state)
{
	int fd = memory(BYTES, true);
	struct save_message m = message(1, 0), good = m;
	struct peer p;

	(void)state;
	daemon_peer(&d, &p, 0777);
	*word(&p) = WIRE_LENT;
	assert_int_equal(save(&p, &m), -ENOENT);
	assert_int_equal(lend(&p, 1, fd), 0);
	assert_int_equal(lend(&p, 1, fd), -EEXIST);
	m.page = N;
	assert_int_equal(save(&p, &m), -EINVAL);
	m.page = UINT64_MAX;
	assert_int_equal(save(&p, &m), -EINVAL);
	m = good;
	m.what.lent = 1;
	assert_int_equal(save(&p, &m), -EINVAL);
	m.what.lent = p.staging_bytes;
	assert_int_equal(save(&p, &m), -EINVAL);
	m.what.lent = UINT64_MAX - 3;
	assert_int_equal(save(&p, &m), -EINVAL);
	m = good;
	m.save.len = 5;
	assert_int_equal(save(&p, &m), -EINVAL);
	*word(&p) = 0;
	assert_int_equal(save(&p, &good), -ECANCELED);
	*word(&p) = WIRE_LENT + 1;
	assert_int_equal(save(&p, &good), -ECANCELED);
	assert_int_equal(peer_probe(&p, 1), WIRE_ABSENT);
	*word(&p) = WIRE_LENT;
	assert_int_equal(save(&p, &good), 0);
	assert_int_equal(save(&p, &good), -EEXIST);
	assert_int_equal(peer_probe(&p, 1), WIRE_DRAM);
	assert_true(daemon_wait_idle(&d) >= 0);
	peer_close(&p);
	close(fd);
}

struct save_all {
	struct wire_save_pages what;
	struct wire_save saves[N];
	uint64_t pages[N];
};

static int save_all(struct peer *p, uint32_t first, struct save_all *m)
{
	const struct wire_header header = {.type = WIRE_SAVE_PAGES,
					   .count = sizeof(m->saves) +
						    sizeof(m->pages)};

	m->what = (struct wire_save_pages){.pool = 1, .n = N};
	for (uint32_t i = 0; i < N; i++)
		m->saves[i] = message(first + i, 0).save;
	return peer_call(p, &header, m, sizeof(*m), -1);
}

/* A worker copies several blocks before it seals them.  A block that cannot be
 * saved does not keep back its neighbours, and has none of their bytes. */
static void blocks_of_one_job_have_their_own_fates(void **state)
{
	static uint8_t bytes[BYTES];
	int fd = memory(BYTES, true);
	const struct wire_status *statuses;
	struct wire_place *places;
	struct save_message second = message(107, 7);
	struct save_all m = {0};
	struct peer p;
	uint64_t tag;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i / DAEMON_PAYLOAD + i % 251);
	assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	daemon_peer(&d, &p, 0777);
	assert_int_equal(lend(&p, 1, fd), 0);
	*word(&p) = WIRE_LENT;
	assert_int_equal(save(&p, &second), 0);
	for (uint64_t i = 0; i < N; i++)
		m.pages[i] = i;
	m.pages[3] = N;
	assert_int_equal(save_all(&p, 100, &m), 0);
	statuses = PEER_ITEMS(&p, struct wire_status);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(statuses[i].status, i == 3   ? -EINVAL
						     : i == 7 ? -EEXIST
							      : 0);
	assert_int_equal(peer_probe(&p, 103), WIRE_ABSENT);
	tag = peer_send_acquire(&p, 104, N - 4, 0, 0);
	assert_int_equal(peer_acquired(&p, tag), N - 4);
	places = PEER_ITEMS(&p, struct wire_place);
	for (size_t i = 0; i < N - 4; i++)
		assert_memory_equal(
			p.segments[places[i].segment].data + places[i].offset +
				places[i].payload,
			bytes + (i + 4) * DAEMON_PAYLOAD, DAEMON_PAYLOAD);
	/* Pages that were taken back seal no block of the job. */
	*word(&p) = 0;
	m.pages[3] = 3;
	assert_int_equal(save_all(&p, 200, &m), 0);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(statuses[i].status, -ECANCELED);
	assert_int_equal(peer_probe(&p, 200), WIRE_ABSENT);
	peer_close(&p);
	close(fd);
	assert_true(daemon_wait_idle(&d) >= 0);
}

/* Holes read as zeros and are not filled, even in a file that is empty when it is
 * lent, and grows. */
static void holes_are_zeros_and_nothing_fills_them(void **state)
{
	static const uint8_t zeros[DAEMON_PAYLOAD];
	struct wire_place *place;
	struct save_message m = message(6, 3);
	struct stat st;
	struct peer p;
	int fd = memory(0, false);
	uint64_t tag;

	(void)state;
	daemon_peer(&d, &p, 0777);
	assert_int_equal(lend(&p, 1, fd), 0);
	*word(&p) = WIRE_LENT;
	assert_int_equal(save(&p, &m), -EFAULT);
	assert_int_equal(ftruncate(fd, BYTES), 0);
	assert_int_equal(save(&p, &m), 0);
	tag = peer_send_acquire(&p, 6, 1, 0, 0);
	assert_int_equal(peer_acquired(&p, tag), 1);
	place = PEER_ITEMS(&p, struct wire_place);
	assert_memory_equal(p.segments[place->segment].data + place->offset +
				    place->payload,
			    zeros, DAEMON_PAYLOAD);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks, 0);
	peer_close(&p);
	close(fd);
}

static void a_save_of_another_length_ends_the_connection(void **state)
{
	int fd = memory(BYTES, true);
	const uint32_t wrong[][2] = {
		{0, 1}, {2, 1}, {513, 1}, {UINT32_MAX, 1}, {1, 2}};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++) {
		struct save_message m[2] = {message(2, 0)};
		struct wire_header header = {
			.type = WIRE_SAVE_PAGES,
			.count = wrong[i][1] *
				 (uint32_t)(sizeof(m->save) + sizeof(m->page))};
		struct peer p;

		daemon_peer(&d, &p, 0777);
		assert_int_equal(lend(&p, 1, fd), 0);
		m->what.n = wrong[i][0];
		assert_int_not_equal(peer_send(&p, &header, m,
					       sizeof(m->what) + header.count,
					       -1),
				     0);
		assert_true(peer_at_end(&p));
		peer_close(&p);
	}
	close(fd);
}

static void another_layouts_block_is_not_saved(void **state)
{
	int fd = memory(BYTES, true);
	struct save_message m = message(3, 0);
	struct peer p;

	(void)state;
	daemon_peer(&d, &p, 0777);
	assert_int_equal(lend(&p, 1, fd), 0);
	assert_int_equal(
		peer_space(&p, "other", DAEMON_OTHER, WIRE_SPACE_CREATE, 0777),
		0);
	*word(&p) = WIRE_LENT;
	assert_int_equal(save(&p, &m), -EINVAL);
	peer_close(&p);
	close(fd);
}

static void nobody_lends_more_than_so_many(void **state)
{
	int fd = memory(BYTES, true);
	struct wire_header close_it = {.type = WIRE_POOL_CLOSE, .arg = 7};
	struct save_message m = message(4, 0);
	struct peer p;

	(void)state;
	daemon_peer(&d, &p, 0777);
	for (uint32_t i = 0; i < WIRE_POOLS_MAX; i++)
		assert_int_equal(lend(&p, i, fd), 0);
	assert_int_equal(lend(&p, WIRE_POOLS_MAX, fd), -ENOLCK);
	*word(&p) = WIRE_LENT;
	m.what.pool = 7;
	assert_int_equal(save(&p, &m), 0);
	assert_true(peer_raw(&p, &close_it, sizeof(close_it), -1, 0));
	close_it.arg = UINT64_MAX; /* no pool has this id */
	assert_true(peer_raw(&p, &close_it, sizeof(close_it), -1, 0));
	m = message(5, 0);
	m.what.pool = 7;
	assert_int_equal(save(&p, &m), -ENOENT);
	assert_int_equal(lend(&p, WIRE_POOLS_MAX, fd), 0);
	peer_close(&p);
	close(fd);
	assert_true(daemon_wait_idle(&d) >= 0);
}

static uint64_t used(enum kv_finite what)
{
	return kv_accounts_used(kv_cache_accounts(d.cache), what);
}

/* A client that dies at any moment leaves no charge for memory that it lent. */
static void lenders_that_go_away_leave_nothing(void **state)
{
	int fd = memory(BYTES, true);

	(void)state;
	for (uint32_t i = 0; i < 200; i++) {
		struct save_message m = message(1000 + i, i % N);
		const struct wire_header header = {
			.type = WIRE_SAVE_PAGES,
			.flags = i % 2 ? WIRE_HOLD : 0,
			.count = sizeof(m.save) + sizeof(m.page)};
		struct peer p;

		daemon_peer(&d, &p, 0777);
		assert_int_equal(lend(&p, 1, fd), 0);
		*word(&p) = WIRE_LENT;
		peer_send(&p, &header, &m, sizeof(m), -1);
		if (i % 3 == 0)
			usleep(i);
		peer_close(&p);
	}
	close(fd);
	assert_true(daemon_wait_idle(&d) >= 0);
	/* A worker unmaps the memory: wait until nothing is charged to the
	 * user. */
	for (int i = 0;
	     i < 20000 && (used(KV_FINITE_STAGINGS) || used(KV_FINITE_MAPPED) ||
			   used(KV_FINITE_MEMORY));
	     i++)
		usleep(1000);
	assert_int_equal(used(KV_FINITE_STAGINGS), 0);
	assert_int_equal(used(KV_FINITE_MAPPED), 0);
	assert_int_equal(used(KV_FINITE_MEMORY), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_no_memory_is_refused),
		cmocka_unit_test(holes_are_zeros_and_nothing_fills_them),
		cmocka_unit_test(strides_that_end_outside_are_refused),
		cmocka_unit_test(crumbs_are_refused),
		cmocka_unit_test(pools_that_cannot_be_are_refused),
		cmocka_unit_test(what_is_wrong_with_a_save_is_told),
		cmocka_unit_test(blocks_of_one_job_have_their_own_fates),
		cmocka_unit_test(a_save_of_another_length_ends_the_connection),
		cmocka_unit_test(another_layouts_block_is_not_saved),
		cmocka_unit_test(nobody_lends_more_than_so_many),
		cmocka_unit_test(lenders_that_go_away_leave_nothing),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
