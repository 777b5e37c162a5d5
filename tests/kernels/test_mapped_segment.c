/* SPDX-License-Identifier: Apache-2.0 */
/* Segments in the library: mapping, life time, and valid offsets. */
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/kernels/impostor.h"

#define SEGMENT (1u << 20)

enum mode {
	HONEST,
	UNSEALED,
	SMALL,
	OUTSIDE,
	HUGE_LENGTH,
	BACKWARDS,
	NAMELESS
};

static int new_segment(enum mode mode)
{
	int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	off_t size = mode == SMALL ? SEGMENT / 2 : SEGMENT;
	uint8_t byte = 42;

	assert_int_equal(ftruncate(fd, size), 0);
	assert_int_equal(pwrite(fd, &byte, 1, 4096), 1);
	if (mode != UNSEALED)
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
	return fd;
}

static void send_segment(int fd, enum wire_type type, int passed)
{
	struct wire_segment segment = {.id = 7, .bytes = SEGMENT};
	struct kv_packet packet = {
		.header = {.type = type, .count = 1},
		.items = &segment,
		.bytes = sizeof(segment),
		.fd = passed,
	};

	kv_link_send(fd, &packet, 0);
}

static void send_place(struct impostor *i, int fd, struct kv_packet *packet)
{
	struct wire_place place = {
		.segment = 7, .offset = 0, .length = 8192, .payload = 4096};
	int segment = new_segment((enum mode)i->mode);

	i->other = fd;
	if (i->mode == OUTSIDE)
		place.offset = SEGMENT - 4096;
	if (i->mode == HUGE_LENGTH)
		place.length = UINT64_MAX - 100;
	if (i->mode == BACKWARDS)
		place.payload = 8193;
	if (i->mode == NAMELESS)
		place.segment = 8;
	send_segment(fd, WIRE_SEGMENT, segment);
	close(segment);
	impostor_reply(fd, packet, &place, sizeof(place), 1);
}

static void retire(struct impostor *i, int fd, struct kv_packet *packet)
{
	uint8_t absent = WIRE_ABSENT;

	send_segment(i->other, WIRE_RETIRE, -1);
	impostor_reply(fd, packet, &absent, 1, 1);
}

static void answer(struct impostor *i, int fd, struct kv_packet *packet)
{
	if (packet->header.type == WIRE_SPACE)
		impostor_space(fd, packet);
	else if (packet->header.type == WIRE_ACQUIRE)
		send_place(i, fd, packet);
	else if (packet->header.type == WIRE_PROBE)
		retire(i, fd, packet);
	else if (packet->header.type == WIRE_RELEASE)
		i->seen |= 1;
	else if (packet->header.type == WIRE_UNMAPPED)
		i->seen |= 2;
}

struct client {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_lease *lease;
};

static int acquire(struct impostor *i, struct client *c, enum mode mode)
{
	kvfs_key key = {.len = 16};
	kvfs_query query;

	i->mode = (int)mode;
	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &c->session), 0);
	assert_int_equal(kvfs_space_open(c->session, "s", NULL, 0, &c->space),
			 0);
	query = (kvfs_query){c->space, &key, 1};
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 2000000000),
				      &c->lease),
			 0);
	assert_true(kvfs_lease_wait(c->lease, KVFS_FOREVER) >= 0);
	return kvfs_lease_status(c->lease, 0);
}

static void leave(struct client *c)
{
	kvfs_release(c->lease);
	kvfs_space_close(c->space);
	kvfs_close(c->session);
}

static void refuses(struct impostor *i, enum mode mode, int status)
{
	struct client c;

	assert_int_equal(acquire(i, &c, mode), status);
	assert_null(kvfs_lease_data(c.lease, 0, NULL));
	leave(&c);
}

static void a_segment_that_could_shrink_is_not_mapped(void **state)
{
	refuses(*state, UNSEALED, -EIO);
}

static void a_segment_shorter_than_said_is_not_mapped(void **state)
{
	refuses(*state, SMALL, -EIO);
}

static void a_block_outside_its_segment_is_refused(void **state)
{
	refuses(*state, OUTSIDE, -EIO);
}

static void a_length_that_overflows_is_refused(void **state)
{
	refuses(*state, HUGE_LENGTH, -EIO);
}

static void tensors_beyond_the_files_end_are_refused(void **state)
{
	refuses(*state, BACKWARDS, -EBADMSG);
}

static void a_segment_never_sent_is_refused(void **state)
{
	refuses(*state, NAMELESS, -EIO);
}

static void wait_seen(struct impostor *i, uint64_t seen)
{
	int k;

	for (k = 0; k < 3000 && (i->seen & seen) != seen; k++)
		usleep(10000);
	assert_int_equal(i->seen & seen, seen);
}

/* This daemon retires the segment when it gets a probe. */
static void a_retired_segment_stays_until_its_last_block_is_released(void **s)
{
	struct impostor *i = *s;
	kvfs_key key = {.len = 16};
	const uint8_t *data;
	struct client c;
	uint8_t state;

	assert_int_equal(acquire(i, &c, HONEST), 0);
	data = kvfs_lease_data(c.lease, 0, NULL);
	assert_int_equal(data[0], 42);
	assert_int_equal(kvfs_probe(&(kvfs_query){c.space, &key, 1}, 1, &state),
			 0);
	assert_int_equal(data[0], 42);
	assert_int_equal(i->seen & 2, 0);
	kvfs_release(kv_steal(c.lease));
	wait_seen(i, 3);
	leave(&c);
}

static void a_segment_is_mapped_for_reading_only(void **state)
{
	struct client c;
	void *page;

	assert_int_equal(acquire(*state, &c, HONEST), 0);
	page = (void *)((uintptr_t)kvfs_lease_data(c.lease, 0, NULL) & ~4095ul);
	assert_int_equal(read(open("/dev/zero", O_RDONLY | O_CLOEXEC), page, 1),
			 -1);
	assert_int_equal(errno, EFAULT);
	leave(&c);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, impostor_setup, impostor_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_segment_that_could_shrink_is_not_mapped),
		test(a_segment_shorter_than_said_is_not_mapped),
		test(a_block_outside_its_segment_is_refused),
		test(a_length_that_overflows_is_refused),
		test(tensors_beyond_the_files_end_are_refused),
		test(a_segment_never_sent_is_refused),
		test(a_retired_segment_stays_until_its_last_block_is_released),
		test(a_segment_is_mapped_for_reading_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
