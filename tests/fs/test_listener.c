/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_listener.c - the control socket's name.
 *
 * OWNS      a temporary directory a test.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <cmocka.h>

#include "fs/control/server.h"

static char dir[64], path[96];
static struct kv_listener listener;

static int set_up(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/kvfs-listener-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/control", dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	kv_listener_close(&listener);
	unlink(path);
	return rmdir(dir);
}

static void refuses(const char *where, int status, const char *word)
{
	struct kv_listener other;
	char *why = NULL;

	assert_int_equal(kv_listener_open(&other, where, &why), status);
	if (word) {
		assert_non_null(why);
		assert_non_null(strstr(why, word));
	}
	free(why);
	kv_listener_close(&other);
}

static void opens(void)
{
	char *why = NULL;

	assert_int_equal(kv_listener_open(&listener, path, &why), 0);
	assert_null(why);
}

static void a_file_that_is_no_socket_is_refused_and_stays(void **state)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	refuses(path, -EEXIST, "not a socket");
	assert_int_equal(access(path, F_OK), 0);
}

static void a_socket_that_answers_is_refused_and_stays(void **state)
{
	struct stat before, after;

	(void)state;
	opens();
	assert_int_equal(lstat(path, &before), 0);
	refuses(path, -EADDRINUSE, "another daemon");
	assert_int_equal(lstat(path, &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
}

static void a_socket_of_another_kind_that_lives_is_refused(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	(void)state;
	strcpy(address.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)),
			 0);
	assert_int_equal(listen(fd, 1), 0);
	refuses(path, -EADDRINUSE, "another daemon");
	close(fd);
}

static void a_path_too_long_for_a_socket_is_refused(void **state)
{
	char longer[200];

	(void)state;
	snprintf(longer, sizeof(longer), "%s/%0120d", dir, 0);
	refuses(longer, -ENAMETOOLONG, NULL);
}

static void a_parent_that_is_a_file_is_refused(void **state)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	char below[128];

	(void)state;
	close(fd);
	snprintf(below, sizeof(below), "%s/x", path);
	refuses(below, -ENOTDIR, NULL);
}

static void a_dead_socket_is_swept(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	(void)state;
	strcpy(address.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)),
			 0);
	close(fd);
	opens();
}

/* Another daemon has locked the name, and its socket does not listen yet. */
static void a_socket_whose_name_is_locked_stays(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), lock;
	struct stat before, after;
	char file[128];

	(void)state;
	snprintf(file, sizeof(file), "%s.lock", path);
	lock = open(file, O_CREAT | O_RDWR, 0600);
	assert_int_equal(flock(lock, LOCK_EX), 0);
	strcpy(address.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)),
			 0);
	assert_int_equal(lstat(path, &before), 0);
	refuses(path, -EWOULDBLOCK, "another process holds");
	assert_int_equal(lstat(path, &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	close(lock);
	close(fd);
	opens(); /* the process that held the lock is dead */
	assert_int_equal(access(file, F_OK), -1);
}

static void of_a_path_mostly_missing_nothing_is_made(void **state)
{
	char deep[128];

	(void)state;
	snprintf(deep, sizeof(deep), "%s/a/b/control", dir);
	refuses(deep, -ENOENT, NULL);
	snprintf(deep, sizeof(deep), "%s/a", dir);
	assert_int_equal(access(deep, F_OK), -1);
}

static void a_directory_made_for_a_socket_that_fails_goes_again(void **state)
{
	char below[128], *why = NULL;

	(void)state;
	/* a socket name that ends with "/" */
	snprintf(below, sizeof(below), "%s/a/", dir);
	assert_int_not_equal(kv_listener_open(&listener, below, &why), 0);
	free(why);
	assert_int_equal(access(below, F_OK), -1);
}

static void a_missing_directory_is_made_and_goes_again(void **state)
{
	char deep[128], *why = NULL;
	struct stat st;
	mode_t mask = umask(0077);

	(void)state;
	snprintf(deep, sizeof(deep), "%s/a/control", dir);
	assert_int_equal(kv_listener_open(&listener, deep, &why), 0);
	umask(mask);
	assert_int_equal(lstat(deep, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0666);
	snprintf(deep, sizeof(deep), "%s/a", dir);
	assert_int_equal(lstat(deep, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	kv_listener_close(&listener);
	assert_int_equal(access(deep, F_OK), -1);
}

static void closing_leaves_a_name_that_is_now_another_ones(void **state)
{
	int fd;

	(void)state;
	opens();
	assert_int_equal(unlink(path), 0);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	close(fd);
	kv_listener_close(&listener);
	assert_int_equal(access(path, F_OK), 0);
}

#define LISTENER_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LISTENER_TEST(a_file_that_is_no_socket_is_refused_and_stays),
		LISTENER_TEST(a_socket_that_answers_is_refused_and_stays),
		LISTENER_TEST(a_socket_of_another_kind_that_lives_is_refused),
		LISTENER_TEST(a_path_too_long_for_a_socket_is_refused),
		LISTENER_TEST(a_parent_that_is_a_file_is_refused),
		LISTENER_TEST(a_dead_socket_is_swept),
		LISTENER_TEST(a_socket_whose_name_is_locked_stays),
		LISTENER_TEST(of_a_path_mostly_missing_nothing_is_made),
		LISTENER_TEST(
			a_directory_made_for_a_socket_that_fails_goes_again),
		LISTENER_TEST(a_missing_directory_is_made_and_goes_again),
		LISTENER_TEST(closing_leaves_a_name_that_is_now_another_ones),
	};

	listener.fd = -1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
