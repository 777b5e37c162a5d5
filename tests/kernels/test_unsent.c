/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that the kernel does not take, and connections that end: the daemon
 * keeps no lease and no reservation of them, other saves go on, and blocks that
 * a client still reads stay. */
#include "tests/kernels/paged.h"
#include "kernels/session/session.h"
#include "tests/kernels/layered.h"

#define N 20

/* sendmsg(2) fails for the next @left messages of @type. */
static struct {
	atomic_int left, error;
	enum wire_type type;
} unsent;

/* Replace sendmsg(2) of libc. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	const struct wire_header *header = message->msg_iov[0].iov_base;

	if (unsent.left > 0 && header->type == unsent.type) {
		unsent.left--;
		errno = unsent.error;
		return -1;
	}
	return syscall(SYS_sendmsg, fd, message, flags);
}

static void fail_to_send(enum wire_type type, int error, int n)
{
	unsent.type = type;
	unsent.error = error;
	unsent.left = n;
}

static kvfs_xfer *save(struct world *w, uint32_t first)
{
	return layered_save_by(w->pool, w->space, first, N, NULL);
}

/* Replace recvmsg(2) of libc.  If @garbles, the next message has no known type. */
static atomic_bool garbles;

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	struct wire_header *header = message->msg_iov[0].iov_base;
	const ssize_t n = syscall(SYS_recvmsg, fd, message, flags);

	if (n > 0 && atomic_exchange(&garbles, false))
		header->type = WIRE_TYPE_END;
	return n;
}

enum way {
	BY_CLIENT,
	BY_DAEMON,  /* a packet that is no message makes the daemon cut */
	BY_MESSAGE, /* the daemon sends a message that is none */
};

/* End the connection in the way @how, and wait for the next one to the same
 * daemon. */
static void cut(struct world *w, enum way how)
{
	const uint64_t before = atomic_load(&w->session->live);
	uint64_t live = before;

	pthread_mutex_lock(&w->session->lock);
	if (how == BY_DAEMON)
		assert_int_equal(send(w->session->link.fd, "", 1, 0), 1);
	else if (how == BY_CLIENT)
		shutdown(w->session->link.fd, SHUT_RDWR);
	pthread_mutex_unlock(&w->session->lock);
	if (how == BY_MESSAGE) {
		garbles = true;
		ask_for_nothing(w);
	}
	for (int i = 0; i < 3000 && (live == before || live == 0); i++) {
		usleep(10000);
		live = atomic_load(&w->session->live);
	}
	assert_true(live > before);
	world_wait_stat(w, "being saved", 0);
	world_wait_staged(w);
}

/* ---- saves ---- */

/* Have all copy threads wait in one save, then return another, for whose
 * blocks the daemon has made reservations. */
static kvfs_xfer *queue_behind(struct world *w, kvfs_xfer **ret_copying)
{
	kvfs_xfer *queued;

	world_wait_staged(w);
	slow_shut(true);
	*ret_copying = save(w, 100);
	for (int i = 0; i < 3000 && slow.saves < N; i++)
		usleep(10000);
	queued = save(w, 0);
	world_wait_stat(w, "being saved", 2 * N);
	ask_for_nothing(w);
	return queued;
}

/* A save that was begun before the connection ended is cancelled.  The same
 * blocks are reserved anew for another save. */
static void a_cancel_leaves_reservations_of_a_later_connection(void **state)
{
	struct world *w = *state;
	kvfs_xfer *copying, *before, *after;

	before = queue_behind(w, &copying);
	cut(w, BY_CLIENT);
	layered_fill(w, N);
	after = save(w, 0);
	world_wait_stat(w, "being saved", N);
	kvfs_xfer_cancel(before);
	ask_for_nothing(w);
	slow_shut(false);
	assert_int_equal(layered_end(after, KVFS_SEALED), N);
	layered_check(w, N);
	assert_int_equal(layered_end(before, KVFS_SEALED), 0);
	assert_int_equal(layered_end(copying, KVFS_SEALED), 0);
	world_wait_stat(w, "being saved", 0);
}

static void a_save_that_cannot_be_sent_leaves_no_reservation(void **state)
{
	struct world *w = *state;
	const uint64_t live = atomic_load(&w->session->live);
	kvfs_xfer *xfer;

	fail_to_send(WIRE_SAVE, EPIPE, 100);
	xfer = save(w, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	fail_to_send(WIRE_SAVE, 0, 0);
	world_wait_stat(w, "being saved", 0);
	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, 0), KVFS_SEALED), N);
	layered_check(w, N);
	assert_int_equal(atomic_load(&w->session->live), live);
}

/* ---- leases ---- */

/* Fill the daemon's memory with other blocks. */
static void use_all_memory(struct world *w)
{
	const kvfs_opts must = {.size = sizeof(must), .flags = KVFS_MUST};

	memset(w->memory, 0x55, (size_t)PAGES * PAYLOAD);
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(
			layered_end(layered_save_by(w->pool, w->space, 1000 * i,
						    PAGES, &must),
				    KVFS_SEALED),
			PAGES);
}

/* A cut connection ends for the daemon when the library has closed it, as the
 * client may still read the memory. */
static void stays_until_released(struct world *w, enum way how)
{
	kvfs_lease *lease;
	pid_t child;

	world_wait_staged(w);
	world_save(w, N);
	lease = world_acquire(w, N, N);
	cut(w, how);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	use_all_memory(w);
	for (uint32_t i = 0; i < N; i++)
		assert_true(world_is(kvfs_lease_data(lease, i, NULL), i));
	world_wait_stat(w, "leased", N);
	/* A child does not keep the connection. */
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	kvfs_release(lease);
	world_wait_stat(w, "leased", 0);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_lease_of_a_connection_that_the_daemon_cuts_stays(void **state)
{
	stays_until_released(*state, BY_DAEMON);
}

static void a_lease_stays_after_a_message_that_is_none(void **state)
{
	stays_until_released(*state, BY_MESSAGE);
}

static void release_later(struct world *w, kvfs_lease *lease)
{
	const uint64_t live = atomic_load(&w->session->live);

	kvfs_release(lease);
	world_thaw(w);
	world_wait_stat(w, "leased", 0);
	assert_int_equal(atomic_load(&w->session->live), live);
}

static void a_release_without_memory_is_sent_later(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease;

	world_save(w, N);
	lease = world_acquire(w, N, N);
	world_wait_stat(w, "leased", N);
	fail_to_send(WIRE_RELEASE, ENOBUFS, 3);
	release_later(w, lease);
	assert_int_equal(unsent.left, 0);
}

/* Stop the daemon, and send to it until messages are queued. */
static void freeze_and_fill(struct world *w)
{
	kvfs_key key = world_key(0);
	bool full = false;

	world_freeze(w);
	while (!full) {
		assert_int_equal(kvfs_ended(w->space, &key, 1), 0);
		pthread_mutex_lock(&w->session->lock);
		full = w->session->rpc.n_out > 0;
		pthread_mutex_unlock(&w->session->lock);
	}
}

static void a_release_that_finds_the_socket_full_is_sent_later(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease;

	world_save(w, N);
	lease = world_acquire(w, N, N);
	world_wait_stat(w, "leased", N);
	freeze_and_fill(w);
	release_later(w, lease);
}

/* The kernel has no memory for the descriptor, or the user has too many in
 * flight. */
static void a_refused_descriptor_leaves_the_connection(void **state)
{
	static const int errors[] = {ENOMEM, ETOOMANYREFS};
	struct world *w = *state;
	const uint64_t live = atomic_load(&w->session->live);
	struct kvfs_pool_info info = {.size = sizeof(info)};
	uint64_t bytes = 64u << 20;
	kvfs_lease *lease;

	world_wait_staged(w);
	world_save(w, N);
	lease = world_acquire(w, N, N);
	for (size_t i = 0; i < KV_ARRAY_LEN(errors); i++) {
		freeze_and_fill(w);
		bytes += 16u << 20;
		assert_int_equal(kvfs_pool_staging(w->pool, bytes, 1), 0);
		for (int j = 0; j < 3000 && info.bytes_staging < bytes; j++) {
			usleep(10000);
			assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
		}
		assert_true(info.bytes_staging >= bytes);
		fail_to_send(WIRE_STAGING, errors[i], 3);
		world_thaw(w);
		for (int j = 0; j < 3000 && unsent.left > 0; j++)
			usleep(10000);
		assert_int_equal(atomic_load(&w->session->live), live);
		assert_int_equal(layered_end(save(w, 100 * (uint32_t)(i + 1)),
					     KVFS_SEALED),
				 N);
	}
	world_wait_stat(w, "leased", N);
	kvfs_release(lease);
	assert_int_equal(atomic_load(&w->session->live), live);
}

static int all_is_sent(void **state)
{
	unsent.left = 0;
	return teardown(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, all_is_sent)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_cancel_leaves_reservations_of_a_later_connection),
		test(a_save_that_cannot_be_sent_leaves_no_reservation),
		test(a_lease_of_a_connection_that_the_daemon_cuts_stays),
		test(a_lease_stays_after_a_message_that_is_none),
		test(a_release_without_memory_is_sent_later),
		test(a_release_that_finds_the_socket_full_is_sent_later),
		test(a_refused_descriptor_leaves_the_connection),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
