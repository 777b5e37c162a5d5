/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_send_queue.c - messages for a peer that reads late, or never.
 *
 * OWNS      a pair of sockets a test.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <cmocka.h>

#include "fs/control/server.h"

enum { MESSAGE = 1000 };

static int pair[2];
static struct kv_send_queue box;

static int set_up(void **state)
{
	(void)state;
	kv_send_queue_init(&box, NULL);
	return socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
}

static int tear_down(void **state)
{
	(void)state;
	kv_send_queue_fini(&box);
	close(pair[0]);
	close(pair[1]);
	return 0;
}

static int send_number(uint32_t n, int fd)
{
	uint8_t message[MESSAGE] = {0};

	memcpy(message, &n, sizeof(n));
	return kv_send_queue_send(&box, pair[0], message, sizeof(message), fd);
}

/* Return the number in the next message, or -1; close the message's
 * descriptor. */
static long next_number(bool *ret_fd)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	uint8_t message[MESSAGE];
	struct iovec iov = {message, sizeof(message)};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.room,
			   .msg_controllen = sizeof(control.room)};
	uint32_t n;
	int fd;

	*ret_fd = false;
	if (recvmsg(pair[1], &m, MSG_DONTWAIT) != MESSAGE)
		return -1;
	if (CMSG_FIRSTHDR(&m)) {
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		assert_true(fcntl(fd, F_GETFD) >= 0);
		close(fd);
		*ret_fd = true;
	}
	memcpy(&n, message, sizeof(n));
	return n;
}

static void a_closed_peer_is_an_error_and_no_signal(void **state)
{
	(void)state;
	shutdown(pair[1], SHUT_RDWR);
	assert_int_equal(send_number(1, -1), -EPIPE);
}

static void too_much_for_one_that_never_reads_is_an_error(void **state)
{
	uint32_t n = 0;
	int r;

	(void)state;
	while ((r = send_number(n, -1)) == 0)
		assert_true(++n < 2 * KV_SEND_QUEUE_BYTES / MESSAGE);
	assert_int_equal(r, -ENOBUFS);
	assert_true(box.bytes <= KV_SEND_QUEUE_BYTES);
}

static void too_many_descriptors_are_an_error(void **state)
{
	uint32_t n = 0;
	int r;

	(void)state;
	while ((r = send_number(n, 0)) == 0)
		assert_true(++n < 4 * KV_SEND_QUEUE_FDS);
	assert_true(r == -ENOBUFS || r == -ETOOMANYREFS);
	assert_true(box.fds <= KV_SEND_QUEUE_FDS);
}

static void what_waited_arrives_in_order_with_its_descriptors(void **state)
{
	uint32_t n = 0, got = 0;
	bool fd;
	long number;
	int r;

	(void)state;
	while (box.bytes < 100 * MESSAGE) {
		assert_int_equal(send_number(n, n % 16 == 0 ? 0 : -1), 0);
		n++;
	}
	do {
		r = kv_send_queue_drain(&box, pair[0]);
		assert_true(r >= 0);
		while ((number = next_number(&fd)) >= 0) {
			assert_int_equal(number, got);
			assert_int_equal(fd, got % 16 == 0);
			got++;
		}
	} while (r == 0);
	assert_int_equal(got, n);
	assert_int_equal(box.bytes, 0);
	assert_int_equal(box.fds, 0);
}

#define OUTBOX_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		OUTBOX_TEST(a_closed_peer_is_an_error_and_no_signal),
		OUTBOX_TEST(too_much_for_one_that_never_reads_is_an_error),
		OUTBOX_TEST(too_many_descriptors_are_an_error),
		OUTBOX_TEST(what_waited_arrives_in_order_with_its_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
