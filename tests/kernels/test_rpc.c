/* SPDX-License-Identifier: Apache-2.0 */
/* Replies that match no request, and requests during which the connection
 * ends. */
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "kernels/session/session.h"
#include "tests/kernels/impostor.h"

enum mode {
	ABSENT,
	WRONG_TAG,
	TOO_MANY,
	WRONG_TYPE,
	UNASKED,
	SHORT,
	HANG_UP,
	HELD,
	UNDER_WAY,
	ALL_UNDER_WAY
};

static void acquired(struct impostor *i, int fd, struct kv_packet *packet)
{
	struct wire_place places[2] = {{.status = -ENOENT}};
	uint32_t count = 1;

	if (i->mode == WRONG_TAG)
		packet->header.tag += 1000;
	if (i->mode == WRONG_TYPE)
		packet->header.type = WIRE_PROBE;
	if (i->mode == TOO_MANY)
		count = 2;
	if (i->mode == UNASKED) {
		packet->header.type = WIRE_FLUSH;
		kv_link_send(fd, packet, 0);
		return;
	}
	if (i->mode == SHORT) {
		impostor_reply(fd, packet, places, sizeof(places[0]) - 1, 1);
		return;
	}
	if (i->mode == HANG_UP) {
		i->hang_up = true;
		return;
	}
	if (i->mode == UNDER_WAY)
		places[0].status = -EINPROGRESS;
	if (i->mode == ALL_UNDER_WAY)
		packet->header.status = -EINPROGRESS;
	impostor_reply(fd, packet, places, count * sizeof(places[0]), count);
}

static void answer(struct impostor *i, int fd, struct kv_packet *packet)
{
	if (packet->header.type == WIRE_SPACE)
		impostor_space(fd, packet);
	else if (packet->header.type == WIRE_ACQUIRE)
		acquired(i, fd, packet);
}

static int acquire(kvfs_space *space)
{
	kvfs_key key = {.len = 16};
	kvfs_query query = {space, &key, 1};
	kvfs_lease *lease;
	int status;

	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, 5000000000u), 0);
	status = kvfs_lease_status(lease, 0);
	kvfs_release(lease);
	return status;
}

/* Check that a bad reply ends its request, and that the next request connects
 * anew. */
static void ends_and_recovers(struct impostor *i, enum mode mode, int status)
{
	kvfs_session *session;
	kvfs_space *space;
	int k, before;

	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space), 0);
	assert_int_equal(acquire(space), -ENOENT);
	before = i->connections;
	i->mode = (int)mode;
	assert_int_equal(acquire(space), status);
	i->mode = ABSENT;
	for (k = 0; k < 3000 && i->connections == before; k++)
		usleep(10000);
	assert_true(i->connections > before);
	for (k = 0; k < 3000 && !kvfs_connected(session); k++)
		usleep(10000);
	assert_int_equal(acquire(space), -ENOENT);
	kvfs_space_close(space);
	kvfs_close(session);
}

static void a_reply_to_nothing_ends_the_connection(void **state)
{
	ends_and_recovers(*state, WRONG_TAG, -ENOTCONN);
}

static void a_reply_of_another_length_ends_the_connection(void **state)
{
	ends_and_recovers(*state, TOO_MANY, -EPROTO);
}

static void a_reply_of_another_type_ends_the_connection(void **state)
{
	ends_and_recovers(*state, WRONG_TYPE, -ENOTCONN);
}

static void a_request_from_the_daemon_ends_the_connection(void **state)
{
	ends_and_recovers(*state, UNASKED, -ENOTCONN);
}

static void a_cut_off_reply_ends_the_connection(void **state)
{
	ends_and_recovers(*state, SHORT, -ENOTCONN);
}

static void a_daemon_that_hangs_up_is_found_again(void **state)
{
	ends_and_recovers(*state, HANG_UP, -ENOTCONN);
}

/* A lease that has settled has no status that means unsettled. */
static void a_reply_never_means_that_blocks_are_under_way(void **state)
{
	struct impostor *i = *state;
	kvfs_session *session;
	kvfs_space *space;

	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space), 0);
	i->mode = UNDER_WAY;
	assert_int_equal(acquire(space), -EPROTO);
	i->mode = ALL_UNDER_WAY;
	assert_int_equal(acquire(space), -EPROTO);
	kvfs_space_close(space);
	kvfs_close(session);
}

/* ---- threads that wait for replies ---- */

#define WAITERS 4
#define LEASES 50

/* Wait for WAITERS acquires, then answer them in reverse order. */
static void answer_late(struct impostor *i, int fd, struct kv_packet *packet)
{
	static struct kv_packet kept[WAITERS];
	static size_t n;
	struct wire_place place = {.status = -ENOENT};

	if (packet->header.type == WIRE_SPACE)
		impostor_space(fd, packet);
	if (packet->header.type != WIRE_ACQUIRE)
		return;
	(void)i;
	kept[n++] = *packet;
	if (n == WAITERS)
		for (; n > 0; n--)
			impostor_reply(fd, &kept[n - 1], &place, sizeof(place),
				       1);
}

static void *acquire_often(void *space)
{
	for (int i = 0; i < LEASES; i++)
		assert_int_equal(acquire(space), -ENOENT);
	return NULL;
}

/* The daemon answers only when all threads wait.  If a thread misses its
 * wake-up, the others stop, and their leases end by the deadline. */
static void threads_that_wait_at_once_all_hear_their_answers(void **state)
{
	struct impostor *i = *state;
	pthread_t threads[WAITERS];
	kvfs_session *session;
	kvfs_space *space;

	impostor_start(i, answer_late);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space), 0);
	for (int k = 0; k < WAITERS; k++)
		pthread_create(&threads[k], NULL, acquire_often, space);
	for (int k = 0; k < WAITERS; k++)
		pthread_join(threads[k], NULL);
	kvfs_space_close(space);
	kvfs_close(session);
}

/* Return how often the library's reader thread has slept. */
static long reader_sleeps(void)
{
	char path[64], line[128];
	struct dirent *entry;
	long sleeps = -1;
	FILE *file;
	DIR *dir = opendir("/proc/self/task");

	assert_non_null(dir);
	while ((entry = readdir(dir)) != NULL) {
		bool reader = false;

		snprintf(path, sizeof(path), "/proc/self/task/%.20s/status",
			 entry->d_name);
		file = fopen(path, "re");
		while (file && fgets(line, sizeof(line), file)) {
			reader |= strcmp(line, "Name:\tkvfs-reader\n") == 0;
			if (reader)
				sscanf(line, "voluntary_ctxt_switches: %ld",
				       &sleeps);
		}
		if (file)
			fclose(file);
	}
	closedir(dir);
	return sleeps;
}

/* Answer after 2 ms, so that the client's thread is likely to wait by then. */
static void answer_soon(struct impostor *i, int fd, struct kv_packet *packet)
{
	if (packet->header.type == WIRE_ACQUIRE)
		usleep(2000);
	answer(i, fd, packet);
}

static void a_thread_that_waits_receives_its_answer_itself(void **state)
{
	struct impostor *i = *state;
	kvfs_session *session;
	kvfs_space *space;
	long before;

	impostor_start(i, answer_soon);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space), 0);
	assert_int_equal(acquire(space), -ENOENT);
	before = reader_sleeps();
	assert_true(before >= 0);
	for (int k = 0; k < 200; k++)
		assert_int_equal(acquire(space), -ENOENT);
	/* On a busy machine an answer may come before the thread waits. */
	assert_in_range(reader_sleeps() - before, 0, 100);
	kvfs_space_close(space);
	kvfs_close(session);
}

/* ---- messages that wait for room in the socket ---- */

#define KEYS 200 /* a message of more bytes than the least SO_SNDBUF */
#define SENT 2000

/* Receive nothing while the mode is HELD.  i->seen: inode of the last file
 * received. */
static void answer_when_released(struct impostor *i, int fd,
				 struct kv_packet *packet)
{
	struct wire_place places[KEYS];
	struct stat st;

	while (i->mode == HELD)
		usleep(1000);
	if (packet->fd >= 0 && fstat(packet->fd, &st) == 0)
		i->seen = st.st_ino;
	for (size_t k = 0; k < KEYS; k++)
		places[k] = (struct wire_place){.status = -ENOENT};
	if (packet->header.type == WIRE_ACQUIRE)
		impostor_reply(fd, packet, places, sizeof(places), KEYS);
	else
		answer(i, fd, packet);
}

struct queue {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_lease *leases[SENT];
	size_t n;
};

/* Send requests to a daemon that receives none, until one of them is queued. */
static void queue_setup(struct queue *q, struct impostor *i)
{
	kvfs_key keys[KEYS] = {0};
	bool queued = false;
	kvfs_query query;

	memset(q, 0, sizeof(*q));
	impostor_start(i, answer_when_released);
	assert_int_equal(kvfs_open(i->path, &q->session), 0);
	assert_int_equal(kvfs_space_open(q->session, "s", NULL, 0, &q->space),
			 0);
	i->mode = HELD;
	for (size_t k = 0; k < KEYS; k++)
		keys[k].len = 16;
	query = (kvfs_query){q->space, keys, KEYS};
	while (!queued) {
		assert_true(q->n < SENT);
		assert_int_equal(
			kvfs_acquire(&query, 1, NULL, &q->leases[q->n++]), 0);
		pthread_mutex_lock(&q->session->lock);
		queued = q->session->rpc.n_out > 0;
		pthread_mutex_unlock(&q->session->lock);
	}
}

/* Have the daemon receive again.  Check that the last request ends with
 * @status. */
static void queue_teardown(struct queue *q, struct impostor *i, int status)
{
	i->mode = ABSENT;
	for (size_t k = 0; k < q->n; k++)
		assert_int_equal(kvfs_lease_wait(q->leases[k], 10000000000u),
				 0);
	assert_int_equal(kvfs_lease_status(q->leases[q->n - 1], 0), status);
	while (q->n > 0)
		kvfs_release(q->leases[--q->n]);
	kvfs_space_close(q->space);
	kvfs_close(q->session);
}

/* The queued message no longer fits into the socket's buffer (EMSGSIZE), which
 * stands for all errors that leave the socket open, as ENOBUFS does. */
static void
a_queued_message_that_cannot_be_sent_ends_the_connection(void **state)
{
	struct queue q;
	int least = 1;

	queue_setup(&q, *state);
	pthread_mutex_lock(&q.session->lock);
	assert_int_equal(setsockopt(q.session->link.fd, SOL_SOCKET, SO_SNDBUF,
				    &least, sizeof(least)),
			 0);
	pthread_mutex_unlock(&q.session->lock);
	queue_teardown(&q, *state, -ENOTCONN);
}

static void a_queued_message_keeps_its_descriptor(void **state)
{
	struct impostor *i = *state;
	struct wire_staging item = {.bytes = 1};
	struct kv_packet packet = {
		.header = {.type = WIRE_STAGING, .count = 1},
		.items = &item,
		.bytes = sizeof(item),
	};
	struct queue q;
	struct stat st;

	queue_setup(&q, i);
	packet.fd = memfd_create("queued", MFD_CLOEXEC);
	assert_int_equal(fstat(packet.fd, &st), 0);
	pthread_mutex_lock(&q.session->lock);
	kv_rpc_post_locked(q.session, &packet);
	pthread_mutex_unlock(&q.session->lock);
	close(packet.fd);
	i->mode = ABSENT;
	for (int k = 0; k < 10000 && i->seen == 0; k++)
		usleep(1000);
	assert_int_equal(i->seen, st.st_ino);
	queue_teardown(&q, i, -ENOENT);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, impostor_setup, impostor_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_reply_to_nothing_ends_the_connection),
		test(a_reply_of_another_length_ends_the_connection),
		test(a_reply_of_another_type_ends_the_connection),
		test(a_request_from_the_daemon_ends_the_connection),
		test(a_cut_off_reply_ends_the_connection),
		test(a_daemon_that_hangs_up_is_found_again),
		test(a_reply_never_means_that_blocks_are_under_way),
		test(threads_that_wait_at_once_all_hear_their_answers),
		test(a_thread_that_waits_receives_its_answer_itself),
		test(a_queued_message_that_cannot_be_sent_ends_the_connection),
		test(a_queued_message_keeps_its_descriptor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
