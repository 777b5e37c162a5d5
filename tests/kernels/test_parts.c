/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that answers an acquire in parts: loads copy the blocks that have
 * arrived, and the lease settles with the last part. */
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/kernels/impostor.h"

#define BLOCK (1u << 20)
#define FILE_BYTES (BLOCK + 4096)
#define N 64
#define SECOND 1000000000u
#define LAYOUT                                                                 \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[1048576]}]" \
	"}"

static uint8_t pages[N * BLOCK];
static struct kv_packet asked;	    /* the acquire; ready when seen & 1 */
static struct wire_place places[N]; /* items of the last answer */
static atomic_int n_releases, n_cancels;

static void take_space(int fd, struct kv_packet *packet)
{
	char text[sizeof(struct wire_space) + 2 + sizeof(LAYOUT)];
	struct wire_space space = {.id = 1, .writable = 1, .payload = BLOCK};

	memcpy(text, &space, sizeof(space));
	memcpy(text + sizeof(space), "s\0" LAYOUT, 2 + sizeof(LAYOUT) - 1);
	impostor_reply(fd, packet, text, sizeof(text) - 1,
		       2 + sizeof(LAYOUT) - 1);
}

/* Send a segment with N blocks, each full of 42. */
static void send_segment(int fd)
{
	struct wire_segment segment = {.id = 7, .bytes = N * FILE_BYTES};
	struct kv_packet packet = {
		.header = {.type = WIRE_SEGMENT, .count = 1},
		.items = &segment,
		.bytes = sizeof(segment),
		.fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING),
	};
	void *memory;

	assert_int_equal(ftruncate(packet.fd, N * FILE_BYTES), 0);
	memory = mmap(NULL, N * FILE_BYTES, PROT_WRITE, MAP_SHARED, packet.fd,
		      0);
	memset(memory, 42, N * FILE_BYTES);
	munmap(memory, N * FILE_BYTES);
	fcntl(packet.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
	kv_link_send(fd, &packet, 0);
	close(packet.fd);
}

static void answer(struct impostor *i, int fd, struct kv_packet *packet)
{
	if (packet->header.type == WIRE_SPACE) {
		take_space(fd, packet);
	} else if (packet->header.type == WIRE_STAGING) {
		impostor_reply(fd, packet, NULL, 0, 0);
	} else if (packet->header.type == WIRE_ACQUIRE) {
		i->seen |= packet->header.flags & WIRE_PARTS ? 0 : 2;
		send_segment(fd);
		asked = *packet;
		i->other = dup(fd); /* the impostor closes fd itself */
		i->seen |= 1;
	}
	n_releases += packet->header.type == WIRE_RELEASE;
	n_cancels += packet->header.type == WIRE_CANCEL;
}

/* Answer for the blocks @first .. + @n: with @status, or with places.  The answer
 * is the last one if it is so for all blocks. */
static void reply(struct impostor *i, uint32_t first, uint32_t n, int status)
{
	for (int k = 0; k < 3000 && !(i->seen & 1); k++)
		usleep(10000);
	assert_true(i->seen & 1);
	for (uint32_t k = first; k < first + n; k++)
		places[k] =
			status < 0
				? (struct wire_place){.status = status}
				: (struct wire_place){.segment = 7,
						      .offset = k * FILE_BYTES,
						      .length = FILE_BYTES,
						      .payload = 4096};
	asked.header.status = first + n < N ? WIRE_MORE : 0;
	impostor_reply(i->other, &asked, places, sizeof(places), N);
}

struct client {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;
	kvfs_lease *lease;
	kvfs_xfer *load;
};

/* Queue a load of a lease of N blocks. */
static void enter(struct impostor *i, struct client *c, uint64_t deadline)
{
	kvfs_view view = {"k", pages, BLOCK, BLOCK, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages = N,
			       .pages_per_block = 1};
	kvfs_key keys[N];
	int64_t numbers[N];

	memset(pages, 1, sizeof(pages));
	for (int k = 0; k < N; k++)
		places[k] = (struct wire_place){.status = -EINPROGRESS};
	n_releases = n_cancels = 0;
	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &c->session), 0);
	assert_int_equal(kvfs_space_open(c->session, "s", NULL, 0, &c->space),
			 0);
	desc.space = c->space;
	assert_int_equal(kvfs_pool_register(c->session, &desc, &c->pool), 0);
	for (int k = 0; k < N; k++) {
		keys[k] = (kvfs_key){.bytes = {(uint8_t)k}, .len = 16};
		numbers[k] = k;
	}
	assert_int_equal(kvfs_acquire(&(kvfs_query){c->space, keys, N}, 1,
				      KVFS_OPTS(.deadline = deadline),
				      &c->lease),
			 0);
	assert_int_equal(
		kvfs_load(c->pool, c->lease, N, numbers, NULL, &c->load), 0);
}

/* Close everything, and wait for @releases messages RELEASE: one for each
 * tag. */
static void leave(struct impostor *i, struct client *c, int releases)
{
	kvfs_xfer_free(c->load);
	kvfs_release(c->lease);
	for (int k = 0; k < 3000 && n_releases < releases; k++)
		usleep(10000);
	kvfs_pool_close(c->pool);
	kvfs_space_close(c->space);
	kvfs_close(c->session);
	close(i->other);
	assert_int_equal(n_releases, releases);
}

/* Wait until exactly the first @n blocks are copied. */
static void copied(struct client *c, int n)
{
	for (int k = 0, i = 0; k < 30000 && i < n; k++, usleep(1000))
		while (i < n && kvfs_xfer_status(c->load, i) == 0)
			i++;
	for (int k = 0; k < N; k++) {
		assert_int_equal(kvfs_xfer_status(c->load, k) == 0, k < n);
		assert_int_equal(pages[k * BLOCK], k < n ? 42 : 1);
		assert_int_equal(pages[(k + 1) * BLOCK - 1], k < n ? 42 : 1);
	}
}

static void blocks_are_loaded_as_they_arrive(void **state)
{
	struct client c;

	enter(*state, &c, KVFS_FOREVER);
	reply(*state, 0, 32, 0);
	copied(&c, 32);
	assert_int_equal(kvfs_lease_poll(c.lease), 0);
	assert_int_equal(kvfs_lease_status(c.lease, 0), -EINPROGRESS);
	assert_int_equal(kvfs_xfer_status(c.load, 32), -EINPROGRESS);
	reply(*state, 32, 16, 0);
	copied(&c, 48);
	reply(*state, 48, 16, -ENOENT);
	assert_int_equal(kvfs_xfer_wait(c.load, KVFS_COPIED, 20 * SECOND), 48);
	assert_int_equal(kvfs_lease_wait(c.lease, 20 * SECOND), 48);
	assert_int_equal(kvfs_xfer_status(c.load, 48), -ENOENT);
	assert_int_equal(kvfs_lease_status(c.lease, 47), 0);
	assert_int_equal(kvfs_lease_status(c.lease, N - 1), -ENOENT);
	copied(&c, 48);
	leave(*state, &c, 1);
}

static void a_load_can_be_cancelled_between_two_parts(void **state)
{
	struct client c;

	enter(*state, &c, KVFS_FOREVER);
	reply(*state, 0, 32, 0);
	copied(&c, 32);
	kvfs_xfer_cancel(c.load);
	assert_int_equal(kvfs_xfer_wait(c.load, KVFS_COPIED, 20 * SECOND), 32);
	assert_int_equal(kvfs_xfer_status(c.load, 32), -ECANCELED);
	reply(*state, 32, 32, 0);
	assert_int_equal(kvfs_lease_wait(c.lease, 20 * SECOND), N);
	copied(&c, 32);
	leave(*state, &c, 1);
}

/* A load keeps a lease that its caller has released.  When the load ends, nobody
 * waits for the other blocks. */
static void a_released_lease_is_cancelled_with_its_last_load(void **state)
{
	struct client c;

	enter(*state, &c, KVFS_FOREVER);
	reply(*state, 0, 32, 0);
	copied(&c, 32);
	kvfs_release(kv_steal(c.lease));
	usleep(50000);
	assert_int_equal(n_cancels, 0);
	kvfs_xfer_cancel(c.load);
	assert_int_equal(kvfs_xfer_wait(c.load, KVFS_COPIED, 20 * SECOND), 32);
	for (int k = 0; k < 300 && n_cancels == 0; k++)
		usleep(10000);
	assert_int_equal(n_cancels, 1);
	assert_int_equal(n_releases, 0);
	reply(*state, 32, 32, 0);
	leave(*state, &c, 1);
}

/* The daemon holds all blocks of a lease under one tag. */
static void a_lease_given_up_between_two_parts_keeps_the_first(void **state)
{
	struct client c;

	enter(*state, &c, 2ull * SECOND);
	reply(*state, 0, 32, 0);
	assert_int_equal(kvfs_lease_wait(c.lease, 20 * SECOND), 32);
	assert_int_equal(kvfs_xfer_wait(c.load, KVFS_COPIED, 20 * SECOND), 32);
	assert_int_equal(kvfs_xfer_status(c.load, 32), -ETIMEDOUT);
	copied(&c, 32);
	reply(*state, 32, 16, 0);
	reply(*state, 48, 16, 0);
	leave(*state, &c, 1);
}

static void parts_after_the_end_of_a_lease_are_released_once(void **state)
{
	struct client c;

	enter(*state, &c, SECOND / 10);
	assert_int_equal(kvfs_lease_wait(c.lease, 20 * SECOND), 0);
	reply(*state, 0, 32, 0);
	reply(*state, 32, 32, 0);
	leave(*state, &c, 1);
}

static void a_part_about_other_keys_ends_the_connection(void **state)
{
	struct impostor *i = *state;
	struct client c;
	uint64_t generation = 1;

	enter(i, &c, KVFS_FOREVER);
	reply(i, 0, 32, 0);
	copied(&c, 32);
	impostor_reply(i->other, &asked, places, sizeof(places[0]), 1);
	assert_int_equal(kvfs_lease_wait(c.lease, 20 * SECOND), 32);
	assert_int_equal(kvfs_xfer_wait(c.load, KVFS_COPIED, 20 * SECOND), 32);
	assert_int_equal(kvfs_lease_status(c.lease, N - 1), -EPROTO);
	copied(&c, 32);
	for (int k = 0; k < 3000 && generation == 1; k++) {
		usleep(10000);
		kvfs_connection(c.session, &generation);
	}
	leave(*state, &c, 0); /* a new connection has no lease to release */
}

static void the_daemon_dies_between_two_parts(void **state)
{
	struct impostor *i = *state;
	struct client c;

	enter(i, &c, KVFS_FOREVER);
	reply(i, 0, 32, 0);
	copied(&c, 32);
	shutdown(i->other, SHUT_RDWR);
	assert_int_equal(kvfs_xfer_wait(c.load, KVFS_COPIED, 20 * SECOND), 32);
	assert_int_equal(kvfs_xfer_status(c.load, 32), -ENOTCONN);
	assert_int_equal(kvfs_lease_status(c.lease, N - 1), -ENOTCONN);
	copied(&c, 32);
	leave(*state, &c, 0);
}

static void a_session_is_closed_between_two_parts(void **state)
{
	struct impostor *i = *state;
	struct client c;

	enter(i, &c, KVFS_FOREVER);
	reply(*state, 0, 32, 0);
	copied(&c, 32);
	kvfs_pool_close(c.pool);
	assert_int_equal(kvfs_xfer_poll(c.load, KVFS_COPIED), 1);
	assert_int_equal(kvfs_xfer_status(c.load, 31), 0);
	assert_true(kvfs_xfer_status(c.load, 32) < 0);
	assert_int_equal(kvfs_lease_poll(c.lease), 0);
	kvfs_close(c.session);
	close(i->other);
	assert_int_equal(pages[32 * BLOCK], 1);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, impostor_setup, impostor_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(blocks_are_loaded_as_they_arrive),
		test(a_load_can_be_cancelled_between_two_parts),
		test(a_released_lease_is_cancelled_with_its_last_load),
		test(a_lease_given_up_between_two_parts_keeps_the_first),
		test(parts_after_the_end_of_a_lease_are_released_once),
		test(a_part_about_other_keys_ends_the_connection),
		test(the_daemon_dies_between_two_parts),
		test(a_session_is_closed_between_two_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
