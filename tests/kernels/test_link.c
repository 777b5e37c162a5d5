/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the library: which daemons and which messages it
 * accepts. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/kernels/impostor.h"

static void silent(struct impostor *i, int fd, struct kv_packet *packet)
{
	(void)i;
	(void)fd;
	(void)packet;
}

static void a_socket_that_is_not_there_is_an_error(void **state)
{
	struct wire_hello theirs;
	struct kv_link link = {.fd = -1};

	(void)state;
	assert_true(kv_link_open("/nonexistent/control", &link, &theirs) < 0);
	assert_int_equal(link.fd, -1);
	kv_closep(&link.fd);
}

static void no_common_version_is_told_with_theirs(void **state)
{
	struct impostor *i = *state;
	struct wire_hello theirs;
	struct kv_link link = {.fd = -1};

	i->version = WIRE_VERSION + 1;
	impostor_start(i, silent);
	assert_int_equal(kv_link_open(i->path, &link, &theirs),
			 -EPROTONOSUPPORT);
	assert_int_equal(theirs.version, WIRE_VERSION + 1);
	assert_int_equal(theirs.oldest, WIRE_VERSION + 1);
	i->strict = true;
	i->version = WIRE_VERSION + 7;
	i->oldest = WIRE_VERSION + 6;
	assert_int_equal(kv_link_open(i->path, &link, &theirs),
			 -EPROTONOSUPPORT);
	assert_int_equal(theirs.version, WIRE_VERSION + 7);
	assert_int_equal(theirs.oldest, WIRE_VERSION + 6);
	i->oldest = 0;
	i->version = WIRE_OLDEST - 1;
	assert_int_equal(kv_link_open(i->path, &link, &theirs),
			 -EPROTONOSUPPORT);
	assert_int_equal(theirs.version, WIRE_OLDEST - 1);
	assert_int_equal(link.fd, -1);
}

/* Releases before 0.2 speak version 4 of the protocol. */
static void a_daemon_of_version_4_is_refused_and_not_asked_again(void **state)
{
	struct impostor *i = *state;
	struct wire_hello theirs;
	struct kv_link link = {.fd = -1};

	i->strict = true;
	i->version = 4;
	i->oldest = 2;
	impostor_start(i, silent);
	assert_int_equal(kv_link_open(i->path, &link, &theirs),
			 -EPROTONOSUPPORT);
	assert_int_equal(theirs.version, 4);
	assert_int_equal(theirs.oldest, 2);
	assert_int_equal(i->connections, 1);
	assert_int_equal(link.fd, -1);
}

static void nobody_who_answers_hello_is_waited_for_a_second_only(void **state)
{
	struct impostor *i = *state;
	uint64_t before = kv_now_ns();
	struct wire_hello theirs;
	struct kv_link link;

	assert_int_equal(kv_link_open(i->path, &link, &theirs), -EAGAIN);
	assert_in_range(kv_now_ns() - before, 500000000, 20000000000);
}

static void a_path_longer_than_an_address_is_reached(void **state)
{
	struct impostor *i = *state;
	char longer[400], command[900];
	struct wire_hello theirs;
	struct kv_link link;

	impostor_start(i, silent);
	snprintf(longer, sizeof(longer), "%s/%0200d", i->dir, 0);
	assert_int_equal(mkdir(longer, 0700), 0);
	snprintf(command, sizeof(command), "%s/link", longer);
	assert_int_equal(symlink(i->path, command), 0);
	assert_int_equal(kv_link_open(command, &link, &theirs), 0);
	assert_int_equal(link.epoch, 1);
	assert_true(fcntl(link.fd, F_GETFD) & FD_CLOEXEC);
	kv_closep(&link.fd);
	assert_int_equal(link.fd, -1);
	unlink(command);
	rmdir(longer);
}

static void a_message_that_does_not_fit_is_refused_and_its_fd_closed(void **s)
{
	int pair[2], passed = open("/dev/null", O_RDONLY), next;
	uint8_t small[4], large[64] = {0};
	struct kv_packet in = {.items = small, .bytes = sizeof(small)};
	struct kv_packet out = {
		.items = large, .bytes = sizeof(large), .fd = passed};

	(void)s;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	next = dup(0);
	close(next);
	assert_int_equal(kv_link_send(pair[0], &out, 0), 0);
	assert_int_equal(kv_link_receive(pair[1], &in, 0), -EPROTO);
	assert_int_equal(dup(0), next);
	close(next);
	assert_int_equal(send(pair[0], large, 8, 0), 8);
	in.bytes = sizeof(small);
	assert_int_equal(kv_link_receive(pair[1], &in, 0), -EPROTO);
	in.bytes = sizeof(small);
	assert_int_equal(kv_link_receive(pair[1], &in, MSG_DONTWAIT), -EAGAIN);
	close(pair[0]);
	in.bytes = sizeof(small);
	assert_int_equal(kv_link_receive(pair[1], &in, 0), -ENOTCONN);
	close(pair[1]);
	close(passed);
}

static void a_descriptor_comes_along_closed_on_exec(void **state)
{
	int pair[2], passed = open("/dev/null", O_RDONLY);
	uint8_t items[8];
	struct kv_packet in = {.items = items, .bytes = sizeof(items)};
	struct kv_packet out = {.items = items, .bytes = 8, .fd = passed};

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	assert_int_equal(kv_link_send(pair[0], &out, 0), 0);
	assert_int_equal(kv_link_receive(pair[1], &in, 0), 0);
	assert_int_equal(in.bytes, 8);
	assert_true(fcntl(in.fd, F_GETFD) & FD_CLOEXEC);
	close(in.fd);
	close(passed);
	close(pair[0]);
	close(pair[1]);
}

static void a_mount_point_is_told_from_a_socket(void **state)
{
	struct impostor *i = *state;
	char found[KV_SOCKET_PATH_MAX], dir[128], link[160];

	assert_int_equal(kv_link_find(i->path, found), 0);
	assert_string_equal(found, i->path);
	snprintf(dir, sizeof(dir), "%s/.kvfs", i->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(link, sizeof(link), "%s/control", dir);
	assert_int_equal(symlink("/run/somewhere", link), 0);
	assert_int_equal(kv_link_find(i->dir, found), 0);
	assert_string_equal(found, "/run/somewhere");
	unlink(link);
	assert_int_equal(symlink("../control", link), 0);
	assert_int_equal(kv_link_find(i->dir, found), 0);
	assert_true(access(found, F_OK) == 0);
	unlink(link);
	rmdir(dir);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, impostor_setup, impostor_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_socket_that_is_not_there_is_an_error),
		test(no_common_version_is_told_with_theirs),
		test(a_daemon_of_version_4_is_refused_and_not_asked_again),
		test(nobody_who_answers_hello_is_waited_for_a_second_only),
		test(a_message_that_does_not_fit_is_refused_and_its_fd_closed),
		test(a_path_longer_than_an_address_is_reached),
		test(a_descriptor_comes_along_closed_on_exec),
		test(a_mount_point_is_told_from_a_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
