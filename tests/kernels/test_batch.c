/* SPDX-License-Identifier: Apache-2.0 */
/* Saves to a daemon that stops half-way: to which staging memory the library
 * may write afterwards. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "kernels/session/session.h"
#include "kernels/transfer/xfer.h"
#include "tests/kernels/impostor.h"

#define BLOCK (512u << 10)
#define SMALL 4096u /* is reserved and saved by one message */
#define SECOND 1000000000u

/* Reaction of the daemon to a SAVE; but REFUSING refuses the staging memory and
 * keeps the memory before, REFUSING_LARGE does so if the staging is large, BUSY
 * delays the reply to a RESERVE until the test allows it, and FULL has no room for
 * the first SAVE. */
enum mode { SEALING, HANGING_UP, SILENT, REFUSING, REFUSING_LARGE, BUSY, FULL };

/* A block in staging memory: the memfd that has it, and the offset there. */
struct saved {
	int stage;
	off_t at;
};

static uint8_t pages[8 * BLOCK];
static uint64_t block_bytes = BLOCK;
static int full;       /* status of a block without room */
static int stage = -1; /* taken last */
static struct saved saved[2];
static atomic_int n_saved, n_drops;
/* number of RESERVEs that the daemon received, and number that it may answer */
static atomic_int n_reserves, let_reserve;

static void take_space(int fd, struct kv_packet *packet)
{
	char text[sizeof(struct wire_space) + 200] = {0};
	struct wire_space space = {
		.id = 1, .writable = 1, .payload = block_bytes};
	char *layout = text + sizeof(space) + 2;
	int n = snprintf(layout, 190,
			 "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\","
			 "\"shape\":[%zu]}]}",
			 (size_t)block_bytes);

	memcpy(text, &space, sizeof(space));
	text[sizeof(space)] = 's';
	impostor_reply(fd, packet, text, sizeof(space) + 2 + (size_t)n,
		       2 + (uint32_t)n);
}

static void take_stage(struct impostor *i, int fd, struct kv_packet *packet)
{
	const struct wire_staging *staging = packet->items;
	const bool refuses =
		i->mode == REFUSING ||
		(i->mode == REFUSING_LARGE && staging->bytes > KV_STAGE_FIRST);

	packet->header.status = refuses ? -EPERM : 0;
	if (!refuses && stage >= 0)
		close(stage);
	if (!refuses)
		stage = dup(packet->fd);
	impostor_reply(fd, packet, NULL, 0, 0);
	if (refuses)
		i->seen |= 4;
}

static void take_save(const struct wire_save *item)
{
	if (n_saved == 2)
		return;
	saved[n_saved] = (struct saved){dup(stage), (off_t)item->offset};
	n_saved++;
}

static void wait_let(struct impostor *i)
{
	n_reserves++;
	i->seen |= 2;
	for (int k = 0; k < 30000 && let_reserve < n_reserves; k++)
		usleep(1000);
}

static void take_blocks(struct impostor *i, int fd, struct kv_packet *packet)
{
	struct wire_status statuses[WIRE_BATCH] = {0};
	uint32_t n = packet->header.count;

	if (packet->header.type == WIRE_SAVE) {
		assert((packet->header.flags & WIRE_FRESH) ==
		       (block_bytes == SMALL ? WIRE_FRESH : 0));
		if (i->mode == FULL && n_saved == 0)
			statuses[0].status = full;
		take_save(packet->items);
		i->seen |= 1;
		i->hang_up = i->mode == HANGING_UP;
		if (i->mode == HANGING_UP || i->mode == SILENT)
			return;
	}
	if (packet->header.type == WIRE_RESERVE && i->mode == BUSY)
		wait_let(i);
	impostor_reply(fd, packet, statuses, n * sizeof(statuses[0]), n);
}

static void answer(struct impostor *i, int fd, struct kv_packet *packet)
{
	if (packet->header.type == WIRE_SPACE)
		take_space(fd, packet);
	else if (packet->header.type == WIRE_STAGING)
		take_stage(i, fd, packet);
	else
		take_blocks(i, fd, packet);
	n_drops += packet->header.type == WIRE_DROP;
}

struct client {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;
};

static void enter(struct impostor *i, struct client *c)
{
	kvfs_view view = {"k", pages, block_bytes, block_bytes, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages = 8,
			       .pages_per_block = 1};

	n_drops = n_reserves = let_reserve = 0;
	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &c->session), 0);
	assert_int_equal(kvfs_space_open(c->session, "s", NULL, 0, &c->space),
			 0);
	desc.space = c->space;
	assert_int_equal(kvfs_pool_register(c->session, &desc, &c->pool), 0);
}

static void leave(struct client *c)
{
	kvfs_pool_close(c->pool);
	kvfs_space_close(c->space);
	kvfs_close(c->session);
}

static int teardown(void **state)
{
	impostor_teardown(state);
	while (n_saved > 0)
		close(saved[--n_saved].stage);
	if (stage >= 0)
		close(stage);
	stage = -1;
	block_bytes = BLOCK;
	return 0;
}

static kvfs_xfer *save(struct client *c, int64_t page, const kvfs_opts *opts)
{
	kvfs_key key = {.bytes = {(uint8_t)(page + 1)}, .len = 16};
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_save(c->pool, c->space, &key, NULL, 1, &page, opts, &xfer),
		0);
	return xfer;
}

static int sealed_status(kvfs_xfer *xfer)
{
	int status;

	kvfs_xfer_wait(xfer, KVFS_SEALED, 5ull * SECOND);
	status = kvfs_xfer_status(xfer, 0);
	kvfs_xfer_free(xfer);
	return status;
}

static void wait_seen(struct impostor *i, uint64_t seen)
{
	int k;

	for (k = 0; k < 3000 && (i->seen & seen) != seen; k++)
		usleep(10000);
	assert_int_equal(i->seen & seen, seen);
}

static void wait_drop(void)
{
	for (int k = 0; k < 3000 && n_drops == 0; k++)
		usleep(10000);
	assert_int_equal(n_drops, 1);
}

static uint8_t first_byte(const struct saved *block)
{
	uint8_t byte = 0;

	assert_int_equal(pread(block->stage, &byte, 1, block->at), 1);
	return byte;
}

static ino_t memory_of(const struct saved *block)
{
	struct stat st;

	assert_int_equal(fstat(block->stage, &st), 0);
	return st.st_ino;
}

/* The daemon may still read the staging memory of a request that it has not
 * answered. */
static void staging_of_a_lost_connection_is_never_written_again(void **state)
{
	struct impostor *i = *state;
	struct client c;
	int k;

	enter(i, &c);
	i->mode = HANGING_UP;
	memset(pages, 11, sizeof(pages));
	assert_int_equal(sealed_status(save(&c, 0, NULL)), -ENOTCONN);
	i->mode = SEALING;
	for (k = 0; k < 3000 && !kvfs_connected(c.session); k++)
		usleep(10000);
	memset(pages, 22, sizeof(pages));
	assert_int_equal(sealed_status(save(&c, 1, NULL)), 0);
	assert_int_equal(n_saved, 2);
	assert_int_equal(first_byte(&saved[0]), 11);
	assert_int_equal(first_byte(&saved[1]), 22);
	assert_true(memory_of(&saved[0]) != memory_of(&saved[1]));
	leave(&c);
}

static void staging_that_the_daemon_refuses_fails_the_save(void **state)
{
	struct impostor *i = *state;
	struct client c;
	kvfs_xfer *xfers[2];
	int k, status;

	enter(i, &c);
	i->mode = REFUSING;
	for (k = 0; k < 2; k++)
		xfers[k] = save(&c, k, NULL);
	for (k = 0; k < 2; k++) {
		status = sealed_status(xfers[k]);
		assert_true(status == -EPERM || status == -ENOTCONN ||
			    status == 0);
	}
	leave(&c);
}

static void save_until_sealed(struct client *c, int64_t page)
{
	int k;

	for (k = 0; k < 1000 && sealed_status(save(c, page, NULL)) != 0; k++)
		usleep(10000);
	assert_true(k < 1000);
}

static void staging_that_the_daemon_refuses_is_not_used(void **state)
{
	struct impostor *i = *state;
	struct client c;

	i->mode = REFUSING_LARGE;
	enter(i, &c);
	memset(pages, 11, sizeof(pages));
	save_until_sealed(&c, 0);
	wait_seen(i, 4);
	memset(pages, 22, sizeof(pages));
	save_until_sealed(&c, 1);
	assert_int_equal(n_saved, 2);
	assert_int_equal(first_byte(&saved[0]), 11);
	assert_int_equal(first_byte(&saved[1]), 22);
	leave(&c);
}

static uint64_t staging_of(const struct client *c)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(c->pool, &info), 0);
	return info.bytes_staging;
}

static bool larger_is_made(kvfs_session *session)
{
	bool made;

	pthread_mutex_lock(&session->lock);
	made = session->stage_next != NULL;
	pthread_mutex_unlock(&session->lock);
	return made;
}

/* The large staging memory (stage) that is made during a save is used by the
 * next save. */
static void larger_staging_is_taken_when_the_smaller_is_empty(void **state)
{
	struct impostor *i = *state;
	struct client c;
	kvfs_xfer *xfer;
	int k;

	i->mode = BUSY;
	enter(i, &c);
	xfer = save(&c, 0, NULL);
	wait_seen(i, 2);
	for (k = 0; k < 3000 && !larger_is_made(c.session) &&
		    staging_of(&c) < KV_STAGE_BYTES;
	     k++)
		usleep(10000);
	let_reserve = 1;
	assert_int_equal(sealed_status(xfer), 0);
	for (k = 0; k < 3000 && staging_of(&c) < KV_STAGE_BYTES; k++)
		usleep(10000);
	assert_true(staging_of(&c) >= KV_STAGE_BYTES);
	leave(&c);
}

/* The library reads the source pages before COPIED, and never afterwards. */
static void pages_are_the_engines_again_when_copied(void **state)
{
	struct impostor *i = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	struct client c;
	kvfs_xfer *xfer;

	enter(i, &c);
	i->mode = SILENT;
	memset(pages, 33, sizeof(pages));
	xfer = save(&c, 2, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 5ull * SECOND), 1);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SEALED), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -EINPROGRESS);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SECOND / 100),
			 -ETIMEDOUT);
	assert_int_equal(kvfs_pool_info(c.pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	memset(pages, 44, sizeof(pages));
	wait_seen(i, 1);
	assert_int_equal(first_byte(&saved[0]), 33);
	/* The save gets no answer: only the end of the connection ends it. */
	i->mode = HANGING_UP;
	kvfs_xfer_free(save(&c, 3, NULL));
	assert_int_equal(sealed_status(xfer), -ENOTCONN);
	leave(&c);
}

static void what_was_reserved_is_dropped_when_it_is_cancelled(void **state)
{
	struct impostor *i = *state;
	struct client c;
	kvfs_xfer *xfer;

	enter(i, &c);
	i->mode = BUSY;
	xfer = save(&c, 0, NULL);
	wait_seen(i, 2);
	kvfs_xfer_cancel(xfer);
	/* The library has read no byte of the pages: the engine gets them back
	 * before the answer. */
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	assert_int_equal(sealed_status(xfer), -ECANCELED);
	let_reserve = 1;
	wait_drop();
	leave(&c);
	assert_int_equal(i->seen & 1, 0);
}

/* If two saves share pages, the pages stay in use when the first save ends. */
static void pages_of_saves_under_way_are_counted_not_flagged(void **state)
{
	struct impostor *i = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	struct client c;
	kvfs_xfer *a, *b;

	enter(i, &c);
	i->mode = BUSY;
	a = save(&c, 0, NULL);
	b = save(&c, 1, NULL);
	assert_int_equal(kvfs_pool_info(c.pool, &info), 0);
	assert_int_equal(info.pages_saving, 2);
	let_reserve = 1;
	assert_int_equal(kvfs_xfer_wait(a, KVFS_COPIED, 5ull * SECOND), 1);
	assert_int_equal(kvfs_pool_info(c.pool, &info), 0);
	assert_int_equal(info.pages_saving, 1);
	let_reserve = 2;
	assert_int_equal(sealed_status(b), 0);
	assert_int_equal(sealed_status(a), 0);
	assert_int_equal(kvfs_pool_info(c.pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	leave(&c);
}

static void a_save_not_begun_by_its_deadline_times_out(void **state)
{
	struct impostor *i = *state;
	kvfs_opts opts = {.size = sizeof(opts), .deadline = SECOND / 20};
	struct client c;

	enter(i, &c);
	i->mode = BUSY;
	assert_int_equal(sealed_status(save(&c, 0, &opts)), -ETIMEDOUT);
	let_reserve = 1;
	wait_drop();
	leave(&c);
	assert_int_equal(i->seen & 1, 0);
}

/* ---- small saves: one message reserves and saves ---- */

static void a_small_save_without_an_answer_ends_when_it_is_stopped(void **state)
{
	struct impostor *i = *state;
	kvfs_opts opts = {.size = sizeof(opts), .deadline = SECOND / 20};
	struct client c;
	kvfs_xfer *xfer;

	block_bytes = SMALL;
	enter(i, &c);
	i->mode = SILENT;
	xfer = save(&c, 0, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND / 100),
			 -ETIMEDOUT);
	wait_seen(i, 1);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 1);
	assert_int_equal(sealed_status(xfer), -ECANCELED);
	assert_int_equal(sealed_status(save(&c, 1, &opts)), -ETIMEDOUT);
	xfer = save(&c, 2, NULL);
	i->mode = HANGING_UP;
	kvfs_xfer_free(save(&c, 3, NULL));
	assert_int_equal(sealed_status(xfer), -ENOTCONN);
	leave(&c);
	assert_int_equal(n_drops, 0);
}

static void a_small_save_without_room_is_copied_again(void **state)
{
	const kvfs_opts must = {.size = sizeof(must), .flags = KVFS_MUST};
	struct impostor *i = *state;
	struct client c;

	block_bytes = SMALL;
	enter(i, &c);
	i->mode = FULL;
	full = -EBUSY;
	assert_int_equal(sealed_status(save(&c, 0, NULL)), 0);
	assert_int_equal(n_saved, 2);
	while (n_saved > 0)
		close(saved[--n_saved].stage);
	full = -ENOSPC;
	assert_int_equal(sealed_status(save(&c, 1, NULL)), -ENOSPC);
	assert_int_equal(n_saved, 1);
	close(saved[--n_saved].stage);
	assert_int_equal(sealed_status(save(&c, 2, &must)), 0);
	assert_int_equal(n_saved, 2);
	leave(&c);
	assert_int_equal(n_drops, 0);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, impostor_setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(staging_of_a_lost_connection_is_never_written_again),
		test(staging_that_the_daemon_refuses_fails_the_save),
		test(staging_that_the_daemon_refuses_is_not_used),
		test(larger_staging_is_taken_when_the_smaller_is_empty),
		test(pages_are_the_engines_again_when_copied),
		test(what_was_reserved_is_dropped_when_it_is_cancelled),
		test(pages_of_saves_under_way_are_counted_not_flagged),
		test(a_save_not_begun_by_its_deadline_times_out),
		test(a_small_save_without_an_answer_ends_when_it_is_stopped),
		test(a_small_save_without_room_is_copied_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
