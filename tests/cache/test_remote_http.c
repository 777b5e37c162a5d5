/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_http.c - the remote tier's backend on a web server: a real one,
 * that is stopped, killed, and refuses.
 *
 * OWNS      the server, in the current directory.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <sys/un.h>

#include "tests/cache/backend.h"
#include "tests/cache/webserver.h"

static struct webserver server;
static struct kv_remote_op ops[MANY];
static uint8_t data[MANY][100000];
static const struct kv_remote_config config = {0};

/* Make a backend for the URL @format, in which %u stands for @port. */
static void make(const struct kv_remote_driver *of, const char *format,
		 unsigned port)
{
	char url[300], *why = NULL;

	snprintf(url, sizeof(url), format, port);
	driver = of;
	if (driver->make(driver->scheme, url, &config, &backend, &why) < 0)
		fail_msg("%s", why);
}

static void write_file(const char *path, mode_t mode, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static int set_up_server(void **state)
{
	(void)state;
	/* htpasswd's {PLAIN} */
	write_file("users", 0600, "reader:{PLAIN}right\n");
	server.port = reserve_port();
	server.tls = 0;
	webserver_write(&server);
	return webserver_start(&server);
}

static int tear_down_server(void **state)
{
	(void)state;
	webserver_kill(&server);
	return 0;
}

static int set_up(void **state)
{
	(void)state;
	make(&kv_remote_http, "//127.0.0.1:%u/some/prefix", server.port);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	return system("rm -rf data/*") + driver->close(backend);
}

/* ---- objects ---- */

/* A PUT that is cut off leaves nothing; or the whole object, if the server had
 * its last bytes already. */
static void test_a_put_that_is_cut_off_leaves_no_part(void **state)
{
	struct kv_remote_op op = put_of("7/2-s/k", data, sizeof(data));

	(void)state;
	for (useconds_t us = 0; us < 20000; us += 700) {
		struct kv_remote_op head = op_of(KV_REMOTE_HEAD, op.name);

		kv_ops_submit(backend, &op);
		usleep(us);
		kv_ops_cancel(backend, &op);
		await(1);
		do_op(&head);
		if (op.status == -ECANCELED && head.status == -ENOENT)
			continue;
		assert_int_equal(head.status, 0);
		assert_int_equal(head.length, sizeof(data));
		assert_int_equal(status_of(KV_REMOTE_DELETE, op.name), 0);
	}
}

/* ---- servers that refuse requests ---- */

static void test_failures_are_told_apart(void **state)
{
	static const struct {
		const char *url, *why;
		int probe, put;
	} cases[] = {
		{"//127.0.0.1:%u/full/x", "507 Insufficient", -EIO, -ENOSPC},
		{"//127.0.0.1:%u/forbidden/x", "403 Forbidden", -EACCES,
		 -EACCES},
		{"//127.0.0.1:%u/busy/x", "503 Service", -EIO, -EIO},
		{"//127.0.0.1:%u/often/x", "429 Too Many", -EIO, -EIO},
		{"//127.0.0.1:%u/ill/x", "500 Internal", -EIO, -EIO},
		{"//127.0.0.1:%u/elsewhere/x", "301 Moved", -EPROTO, -EPROTO},
		{"//127.0.0.1:%u/private/x", "401 Unauthorized", -EPERM,
		 -EPERM},
		{"//127.0.0.1:%u/read-only", "403 Forbidden", 0, -EACCES},
		{"//127.0.0.1:%u/gets", "405 Not Allowed", 0, -ENOSPC},
		{"//127.0.0.1:%u/small", "413 Request Entity", 0, -ENOSPC},
	};
	static char large[3 << 20];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		struct kv_remote_op op = op_of(KV_REMOTE_GET, OBJECT);

		make(&kv_remote_http, cases[i].url, server.port);
		if (cases[i].probe < 0)
			must_fail(op_of(KV_REMOTE_HEAD, ""), cases[i].probe,
				  cases[i].why);
		else
			assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
		must_fail(put_of(OBJECT, large, sizeof(large)), cases[i].put,
			  cases[i].why);
		do_op(&op);
		assert_true(op.retry_after_ns == (strstr(cases[i].url, "often")
							  ? UINT64_C(7000000000)
							  : 0));
		assert_int_equal(driver->close(backend), 0);
	}
}

/* A backend works if its server refuses to list the prefix (no-list), or if the
 * prefix does not exist before the first PUT (none/yet). */
static void test_a_prefix_need_not_be_listed(void **state)
{
	(void)state;
	make(&kv_remote_http, "//127.0.0.1:%u/no-list", server.port);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	assert_int_equal(driver->close(backend), 0);
	make(&kv_remote_http, "//127.0.0.1:%u/none/yet", server.port);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	assert_int_equal(driver->close(backend), 0);
}

/* The file of credentials is read again after an answer that refuses them. */
static void test_credentials_are_read_again(void **state)
{
	static const char url[] = "//127.0.0.1:%u/private/x?credentials=as";

	(void)state;
	write_file("as", 0600, "user = reader\npassword = wrong\n");
	make(&kv_remote_http, url, server.port);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EPERM, "401");
	write_file("as", 0600, "user = reader\npassword = right\n");
	usleep(1100000);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), 0);
	/* A file of credentials that other users can read is refused: the old
	 * credentials stay. */
	write_file("as", 0644, "user = reader\npassword = wrong\n");
	usleep(1100000);
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), 0);
	assert_int_equal(driver->close(backend), 0);
}

static void test_a_server_that_is_absent_is_named(void **state)
{
	(void)state;
	make(&kv_remote_http, "//127.0.0.1:%u/x", reserve_port());
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "127.0.0.1");
	assert_int_equal(driver->close(backend), 0);
	make(&kv_remote_https, "//127.0.0.1:%u/x", server.port);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "SSL");
	assert_int_equal(driver->close(backend), 0);
}

/* ---- UNIX sockets ---- */

static char here[200];

static int set_up_unix(void **state)
{
	char url[300], *why = NULL;

	(void)state;
	if (!getcwd(here, sizeof(here)))
		return -1;
	snprintf(url, sizeof(url), "%s/web.sock:/some/prefix", here);
	driver = &kv_remote_http_unix;
	return driver->make(driver->scheme, url, &config, &backend, &why);
}

static void test_objects_go_through_a_socket(void **state)
{
	test_the_backend_is_there(state);
	test_an_object_that_was_put_comes_back(state);
	test_many_at_once(state);
	test_a_folder_is_removed_with_all_below_it(state);
	test_an_operation_that_is_cancelled_ends(state);
}

static void test_a_socket_of_all_users_is_refused(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(stat(here, &st), 0);
	assert_int_equal(chmod(here, 0777), 0);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EPERM, "others may write to it");
	assert_int_equal(chmod(here, 01777), 0);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EPERM, "others may write to it");
	assert_int_equal(chmod(here, st.st_mode & 07777), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
}

/* Refuse a UNIX socket on which another user's process listens. */
static void test_another_user_is_not_asked(void **state)
{
	int ready[2], fd;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(rename("web.sock", "web.sock.away"), 0);
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		struct sockaddr_un address = {.sun_family = AF_UNIX,
					      .sun_path = "web.sock"};

		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (bind(fd, (struct sockaddr *)&address, sizeof(address)) <
			    0 ||
		    setresuid(1002, 1002, 1002) < 0 || listen(fd, 8) < 0)
			_exit(1);
		close(ready[0]);
		close(ready[1]);
		pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &fd, 1), 0); /* it listens */
	close(ready[0]);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EPERM, "user 1002 listens there");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_int_equal(rename("web.sock.away", "web.sock"), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
}

static void *come_back(void *arg)
{
	usleep(400000);
	rename("web.sock.away", "web.sock");
	return arg;
}

/* The backend retries a refused connection for a second. */
static void test_a_program_that_starts_is_waited_for(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(rename("web.sock", "web.sock.away"), 0);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "");
	assert_int_equal(pthread_create(&thread, NULL, come_back, NULL), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, ""), 0);
	pthread_join(thread, NULL);
}

/* A listener that accepts no connection, so that its backlog is full. */
static void test_a_full_backlog_is_waited_for(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX,
				      .sun_path = "web.sock"};
	struct pollfd event = {backend->event, POLLIN, 0};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;

	(void)state;
	assert_int_equal(rename("web.sock", "web.sock.away"), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)),
			 0);
	assert_int_equal(listen(fd, 0), 0);
	for (size_t i = 0; i < 8; i++) {
		ops[i] = op_of(KV_REMOTE_HEAD, "");
		kv_ops_submit(backend, &ops[i]);
	}
	/* longer than the backend retries a refused connection */
	usleep(1500000);
	assert_int_equal(pthread_create(&thread, NULL, come_back, NULL), 0);
	assert_int_equal(poll(&event, 1, 0), 0); /* no operation has ended */
	pthread_join(thread, NULL);
	close(fd);
	await(8);
	for (size_t i = 0, good = 0; i < 8; i++) {
		good += ops[i].status == 0;
		/* the listener's backlog holds 2 connections */
		assert_true(i < 7 || good >= 6);
	}
}

/* ---- TLS ---- */

static int set_up_tls(void **state)
{
	(void)state;
	webserver_kill(&server);
	server.tls = reserve_port();
	webserver_write(&server);
	if (system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 "
		   "-keyout site.key -out site.pem -subj /CN=site "
		   "-addext subjectAltName=IP:127.0.0.1 2>openssl.log") != 0)
		return -1;
	return webserver_start(&server);
}

static int tear_down_tls(void **state)
{
	(void)state;
	webserver_kill(&server);
	server.tls = 0;
	webserver_write(&server);
	return webserver_start(&server);
}

static void test_only_a_server_with_a_certificate_is_asked(void **state)
{
	(void)state;
	make(&kv_remote_https, "//127.0.0.1:%u/x", server.tls);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "certificate");
	assert_int_equal(driver->close(backend), 0);
	/* The server's certificate is for another host. */
	make(&kv_remote_https, "//localhost:%u/x?ca=site.pem", server.tls);
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "localhost");
	assert_int_equal(driver->close(backend), 0);
	make(&kv_remote_https, "//127.0.0.1:%u/x?ca=site.pem", server.tls);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), 0);
	assert_int_equal(driver->close(backend), 0);
	assert_int_equal(system("rm -rf data/*"), 0);
}

/* ---- servers that stop ---- */

/* Submit MANY operations, some of each call. */
static void submit_many(void)
{
	char name[100];

	for (size_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "7/many/%032zx", i);
		ops[i] = i % 4 == KV_REMOTE_PUT
				 ? put_of(name, data[i], sizeof(data[i]))
				 : op_of((enum kv_remote_call)(i % 4), name);
		kv_ops_submit(backend, &ops[i]);
	}
}

static void test_a_stopped_server_holds_nobody(void **state)
{
	(void)state;
	kill(server.pid, SIGSTOP);
	submit_many();
	for (size_t i = 0; i < MANY; i++)
		kv_ops_cancel(backend, &ops[i]);
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(ops[i].status, -ECANCELED);
	/* Closing the backend cancels operations in flight. */
	submit_many();
	assert_int_equal(driver->close(backend), 0);
	kill(server.pid, SIGCONT);
	assert_int_equal(set_up(state), 0);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
}

static void test_a_killed_server_is_found_again(void **state)
{
	(void)state;
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
	kill(server.pid, SIGSTOP);
	submit_many();
	webserver_kill(&server);
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_true(ops[i].status == -EIO);
	submit_many(); /* only one operation connects; if it fails, all fail */
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(ops[i].status, -EIO);
	assert_int_equal(webserver_start(&server), 0);
	assert_int_equal(status_of(KV_REMOTE_HEAD, OBJECT), 0);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
}

/* A restarted server has closed the idle connections: operations must not
 * fail. */
static void test_a_server_that_was_made_anew_is_asked_again(void **state)
{
	char name[100];

	(void)state;
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < MANY; i++) {
			snprintf(name, sizeof(name), "7/anew/%032zx", i);
			ops[i] = put_of(name, data[i], sizeof(data[i]));
			kv_ops_submit(backend, &ops[i]);
		}
		await(MANY);
		for (size_t i = 0; i < MANY; i++)
			assert_int_equal(ops[i].status, 0);
		webserver_kill(&server);
		assert_int_equal(webserver_start(&server), 0);
	}
}

/* Return the number of connections to @port of this machine in SYN_SENT.  While
 * other connections come and go, the file may list one connection twice. */
static unsigned knocking(unsigned port)
{
	bool seen[65536] = {false}; /* indexed by the connection's own port */
	char line[300], wanted[64];
	FILE *file = fopen("/proc/net/tcp", "r");
	unsigned n = 0, own;

	assert_non_null(file);
	snprintf(wanted, sizeof(wanted), " 0100007F:%04X 02 ", port);
	while (fgets(line, sizeof(line), file))
		if (strstr(line, wanted) &&
		    sscanf(line, "%*d: %*8x:%4x", &own) == 1) {
			n += !seen[own];
			seen[own] = true;
		}
	fclose(file);
	return n;
}

/* Return a listener at @port that neither accepts nor refuses connections. */
static int deaf_server(unsigned port)
{
	int fd = bound(port);

	assert_int_equal(listen(fd, 0), 0);
	assert_true(listens(port));
	return fd;
}

static void test_while_nobody_is_reached_one_tries(void **state)
{
	unsigned most = 0;
	int fd;

	(void)state;
	webserver_kill(&server);
	fd = deaf_server(server.port);
	for (int round = 0; round < 2; round++) {
		struct pollfd event = {backend->event, POLLIN, 0};

		submit_many();
		most = 0;
		while (poll(&event, 1, 10) == 0)
			most = KV_MAX(most, knocking(server.port));
		usleep(round * 500000);
		if (round == 0)
			await(MANY);
		else
			/* all operations fail if the one that connects fails */
			for (size_t i = 0; i < MANY; i++)
				assert_non_null(kv_ops_reap(backend));
		for (size_t i = 0; i < MANY; i++)
			assert_int_equal(ops[i].status, -EIO);
	}
	assert_true(most <= 1);
	close(fd);
	assert_int_equal(webserver_start(&server), 0);
	assert_int_equal(put(OBJECT, "bytes", 5), 0);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define BY_UNIX(test) \
	cmocka_unit_test_setup_teardown(test, set_up_unix, tear_down)

int main(void)
{
	const struct CMUnitTest one[] = {BACKEND_TESTS, REPLACE_TEST};
	const struct CMUnitTest tests[] = {
		WITH(test_a_put_that_is_cut_off_leaves_no_part),
		cmocka_unit_test(test_failures_are_told_apart),
		cmocka_unit_test(test_a_prefix_need_not_be_listed),
		cmocka_unit_test(test_credentials_are_read_again),
		cmocka_unit_test(test_a_server_that_is_absent_is_named),
		BY_UNIX(test_objects_go_through_a_socket),
		BY_UNIX(test_a_socket_of_all_users_is_refused),
		BY_UNIX(test_another_user_is_not_asked),
		BY_UNIX(test_a_program_that_starts_is_waited_for),
		BY_UNIX(test_a_full_backlog_is_waited_for),
		cmocka_unit_test_setup_teardown(
			test_only_a_server_with_a_certificate_is_asked,
			set_up_tls, tear_down_tls),
		WITH(test_a_stopped_server_holds_nobody),
		WITH(test_a_killed_server_is_found_again),
		WITH(test_a_server_that_was_made_anew_is_asked_again),
		WITH(test_while_nobody_is_reached_one_tries),
	};
	int failed;

	if (set_up_server(NULL) < 0)
		return 1;
	failed = cmocka_run_group_tests(one, set_up, tear_down) +
		 cmocka_run_group_tests(tests, NULL, NULL);
	return tear_down_server(NULL) + failed;
}
