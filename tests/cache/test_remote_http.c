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

#include "common/bytes.h"
#include "tests/cache/backend.h"
#include "tests/cache/webserver.h"

static struct webserver server;

/* Open @url, a format of the port; the caller's own backend stays. */
static int open_url(const struct kv_remote_driver *of, const char *format,
		    unsigned port, void **ret_backend, char **ret_why)
{
	char url[300];

	snprintf(url, sizeof(url), format, port);
	return of->open(url, ret_backend, ret_why);
}

static void must_open(const struct kv_remote_driver *of, const char *format,
		      unsigned port)
{
	char *why = NULL;
	int r = open_url(of, format, port, &backend, &why);

	if (r < 0)
		fail_msg("%s", why);
	driver = of;
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
	for (int tries = 0; tries < 5; tries++) {
		server.port = free_port();
		server.tls = 0;
		webserver_write(&server);
		if (webserver_start(&server) == 0)
			return 0;
	}
	return -1;
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
	must_open(&kv_remote_http, "//127.0.0.1:%u/some/prefix", server.port);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	return system("rm -rf data/*") + driver->close(backend);
}

/* ---- what is there ---- */

static void overwrite(const char *name, const char *text)
{
	char path[300];

	snprintf(path, sizeof(path), "data/some/prefix/%s", name);
	write_file(path, 0600, text);
}

static void test_what_was_not_put_so_is_refused(void **state)
{
	static const char *const notes[] = {
		"",
		"x",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5",
		"10112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5\n",
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5\n"
		"00112233445566778899aabbccddeeff "
		"00000000000000000000000000000000 5\n",
	};
	char room[100];
	uint64_t n;

	(void)state;
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(notes); i++) {
		overwrite(OBJECT ".digest", notes[i]);
		assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -EBADMSG);
		assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	}
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	overwrite(OBJECT, "byte");
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	overwrite(OBJECT, "bytes!");
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	overwrite(OBJECT, "Bytes");
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -EBADMSG);
	assert_int_equal(unlink("data/some/prefix/" OBJECT), 0);
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), -ENOENT);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(get(OBJECT, room, sizeof(room), &n), 0);
}

static void assert_entries(const char *expected)
{
	char entries[1000] = "";
	FILE *list =
		popen("ls -A data/some/prefix/7/s 2>&1 | tr '\\n' ' '", "r");

	assert_non_null(list);
	if (!fgets(entries, sizeof(entries), list))
		entries[0] = '\0';
	pclose(list);
	assert_string_equal(entries, expected);
}

static void test_who_was_not_first_leaves_nothing(void **state)
{
	(void)state;
	assert_int_equal(put("7/s/.layout", KV_REMOTE_PUBLISH, "one", 3), 0);
	assert_int_equal(put("7/s/.layout", KV_REMOTE_PUBLISH, "two", 3),
			 -EEXIST);
	assert_entries(".layout .layout.digest ");
}

/* The server has the request by then, but not answered, nor done anything. */
static void test_who_is_cancelled_leaves_nothing(void **state)
{
	struct kv_remote_op op = op_of(KV_REMOTE_PUBLISH, "7/s/.layout");
	struct kv_remote_op *all = &op;

	(void)state;
	assert_int_equal(put("7/s/k", KV_REMOTE_PUT, "bytes", 5), 0);
	op.data = (uint8_t *)"one";
	op.length = 3;
	op.digest = kv_digest_of("one", 3);
	kill(server.pid, SIGSTOP);
	driver->submit(backend, &all, 1);
	usleep(300000);
	driver->cancel(backend, &op);
	usleep(300000);
	kill(server.pid, SIGCONT);
	await(1);
	assert_int_equal(op.status, -ECANCELED);
	assert_entries("k k.digest ");
}

/* The one that was left by a node that died then. */
static void test_who_tries_again_takes_what_was_left(void **state)
{
	const struct kv_digest digest = kv_digest_of("one", 3);
	char digits[33], name[64];

	(void)state;
	kv_hex(digest.b, 8, digits);
	snprintf(name, sizeof(name), "7/s/.layout.%s", digits);
	assert_int_equal(put("7/s/k", KV_REMOTE_PUT, "bytes", 5), 0);
	overwrite(name, "one");
	assert_int_equal(put("7/s/.layout", KV_REMOTE_PUBLISH, "one", 3), 0);
	assert_entries(".layout .layout.digest k k.digest ");
	overwrite(name, "on");
	assert_int_equal(put("7/s/.layout", KV_REMOTE_PUBLISH, "one", 3),
			 -EEXIST);
	assert_entries(".layout .layout.digest k k.digest ");
}

static void test_a_layout_without_its_note_is_mended(void **state)
{
	(void)state;
	publish_again("data/some/prefix/7/s/.layout.digest", "first");
}

static void test_names_are_not_parts_of_urls(void **state)
{
	static const char *const names[] = {
		"a b/s/k", "a%2e/s/k", "a?b/s/k", "a#b/s/k", "\xc3\xa4/s/k",
	};
	char room[8];
	uint64_t n;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++) {
		assert_int_equal(put(names[i], KV_REMOTE_PUT, "bytes", 5), 0);
		assert_int_equal(put(names[i], KV_REMOTE_PUBLISH, "bytes", 5),
				 -EEXIST);
		assert_int_equal(get(names[i], room, sizeof(room), &n), 0);
		assert_int_equal(status_of(KV_REMOTE_REMOVE, names[i]), 0);
	}
	assert_int_equal(put("a b/s/l", KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(access("data/some/prefix/a b/s/l", F_OK), 0);
}

static void test_what_is_there_is_opened_again(void **state)
{
	(void)state;
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(driver->close(backend), 0);
	must_open(&kv_remote_http, "//127.0.0.1:%u/some/prefix", server.port);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), 0);
}

/* ---- servers that refuse ---- */

static void test_what_the_server_says_is_told(void **state)
{
	static const struct {
		const char *url, *says;
		int opened, status;
	} cases[] = {
		{"//127.0.0.1:%u/full/x", "status 507", -ENOSPC, 0},
		{"//127.0.0.1:%u/forbidden/x", "status 403", -EACCES, 0},
		{"//127.0.0.1:%u/busy/x", "status 503", -EBUSY, 0},
		{"//127.0.0.1:%u/ill/x", "status 5", -EIO, 0},
		{"//127.0.0.1:%u/elsewhere/x", "elsewhere (status 30", -EPROTO,
		 0},
		{"//127.0.0.1:%u/private/x", "status 401", -EACCES, 0},
		{"//127.0.0.1:%u/read-only", NULL, 0, -EACCES},
		{"//127.0.0.1:%u/small", NULL, 0, -EFBIG},
	};
	static char large[3 << 20];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		_cleanup_(kv_freep) char *why = NULL;
		int r = open_url(&kv_remote_http, cases[i].url, server.port,
				 &backend, &why);

		assert_int_equal(r, cases[i].opened);
		if (r < 0) {
			assert_non_null(strstr(why, "http://127.0.0.1:"));
			assert_non_null(strstr(why, cases[i].says));
			continue;
		}
		assert_int_equal(
			put(OBJECT, KV_REMOTE_PUT, large, sizeof(large)),
			cases[i].status);
		assert_int_equal(driver->close(backend), 0);
	}
}

static void test_a_password_opens_what_is_private(void **state)
{
	static const char url[] = "//127.0.0.1:%u/private/x?credentials=as";
	_cleanup_(kv_freep) char *why = NULL;

	(void)state;
	write_file("as", 0600, "user = reader\npassword = wrong\n");
	assert_int_equal(
		open_url(&kv_remote_http, url, server.port, &backend, &why),
		-EACCES);
	assert_null(strstr(why, "wrong"));
	write_file("as", 0600, "user = reader\npassword = right\n");
	must_open(&kv_remote_http, url, server.port);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	assert_int_equal(driver->close(backend), 0);
}

static void test_who_is_not_there_is_named(void **state)
{
	_cleanup_(kv_freep) char *why = NULL, *other = NULL;

	(void)state;
	assert_int_equal(open_url(&kv_remote_http, "//127.0.0.1:%u/x",
				  free_port(), &backend, &why),
			 -ECONNREFUSED);
	assert_non_null(strstr(why, "http://127.0.0.1:"));
	assert_int_equal(open_url(&kv_remote_https, "//127.0.0.1:%u/x",
				  server.port, &backend, &other),
			 -EPROTO);
	assert_non_null(other);
}

/* ---- TLS ---- */

static int set_up_tls(void **state)
{
	(void)state;
	webserver_kill(&server);
	server.tls = free_port();
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

static void test_only_whom_a_trusted_one_vouches_for_is_asked(void **state)
{
	_cleanup_(kv_freep) char *why = NULL, *other = NULL;

	(void)state;
	assert_int_equal(open_url(&kv_remote_https, "//127.0.0.1:%u/x",
				  server.tls, &backend, &why),
			 -EACCES);
	assert_non_null(strstr(why, "certificate"));
	/* The certificate is for another host. */
	assert_int_equal(open_url(&kv_remote_https,
				  "//localhost:%u/x?ca=site.pem", server.tls,
				  &backend, &other),
			 -EACCES);
	must_open(&kv_remote_https, "//127.0.0.1:%u/x?ca=site.pem", server.tls);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUBLISH, "bytes", 5), 0);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUBLISH, "bytes", 5), -EEXIST);
	assert_int_equal(driver->close(backend), 0);
	assert_int_equal(system("rm -rf data/*"), 0);
}

/* ---- servers that stop ---- */

static struct kv_remote_op ops[MANY];
static uint8_t data[MANY][100000];

/* Of each kind some. */
static void submit_many(void)
{
	struct kv_remote_op *all[MANY];
	char name[100];

	for (size_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "7/many/%032zx", i);
		ops[i] = op_of((enum kv_remote_call)(i % 5), name);
		ops[i].data = data[i];
		ops[i].room = ops[i].length = sizeof(data[i]);
		all[i] = &ops[i];
	}
	driver->submit(backend, all, MANY);
}

static void test_a_stopped_server_holds_nobody(void **state)
{
	(void)state;
	kill(server.pid, SIGSTOP);
	submit_many();
	for (size_t i = 0; i < MANY; i++)
		driver->cancel(backend, &ops[i]);
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(ops[i].status, -ECANCELED);
	/* Closing ends operations in flight. */
	submit_many();
	assert_int_equal(driver->close(backend), 0);
	kill(server.pid, SIGCONT);
	assert_int_equal(set_up(state), 0);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
}

static void test_a_killed_server_is_found_again(void **state)
{
	(void)state;
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
	kill(server.pid, SIGSTOP);
	submit_many();
	webserver_kill(&server);
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_true(ops[i].status == -ECONNRESET ||
			    ops[i].status == -ECONNREFUSED);
	submit_many(); /* one is tried, and all end */
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(ops[i].status, -ECONNREFUSED);
	assert_int_equal(webserver_start(&server), 0);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), 0);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
}

/* Connections that stayed open are closed by the server: nobody need know. */
static void test_a_server_that_was_made_anew_is_asked_again(void **state)
{
	struct kv_remote_op *all[MANY];
	char name[100];

	(void)state;
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < MANY; i++) {
			snprintf(name, sizeof(name), "7/anew/%032zx", i);
			ops[i] = op_of(KV_REMOTE_PUT, name);
			ops[i].data = data[i];
			ops[i].length = sizeof(data[i]);
			all[i] = &ops[i];
		}
		driver->submit(backend, all, MANY);
		await(MANY);
		for (size_t i = 0; i < MANY; i++)
			assert_int_equal(ops[i].status, 0);
		webserver_kill(&server);
		assert_int_equal(webserver_start(&server), 0);
	}
}

/* How many try to reach @port of this machine. */
static unsigned knocking(unsigned port)
{
	char line[300], wanted[64];
	FILE *file = fopen("/proc/net/tcp", "r");
	unsigned n = 0;

	assert_non_null(file);
	snprintf(wanted, sizeof(wanted), " 0100007F:%04X 02 ", port);
	while (fgets(line, sizeof(line), file))
		n += strstr(line, wanted) != NULL;
	fclose(file);
	return n;
}

/* Nobody takes connections there, and nobody refuses them. */
static int deaf_server(unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)),
			 0);
	assert_int_equal(listen(fd, 0), 0);
	assert_true(listens(port));
	return fd;
}

static void test_while_nobody_is_reached_one_tries(void **state)
{
	struct kv_remote_op *ended[MANY];
	unsigned most = 0;
	int fd;

	(void)state;
	webserver_kill(&server);
	fd = deaf_server(server.port);
	for (int round = 0; round < 2; round++) {
		struct pollfd event = {driver->fd(backend), POLLIN, 0};

		submit_many();
		most = 0;
		while (poll(&event, 1, 10) == 0)
			most = KV_MAX(most, knocking(server.port));
		usleep(round * 500000);
		if (round == 0)
			await(MANY);
		else /* all with the one that tried */
			assert_int_equal(driver->reap(backend, ended, MANY),
					 MANY);
		for (size_t i = 0; i < MANY; i++)
			assert_int_equal(ops[i].status, -ETIMEDOUT);
	}
	assert_true(most <= 1);
	close(fd);
	assert_int_equal(webserver_start(&server), 0);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, "bytes", 5), 0);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest one[] = {BACKEND_TESTS};
	const struct CMUnitTest tests[] = {
		WITH(test_what_was_not_put_so_is_refused),
		WITH(test_what_is_not_as_noted_is_refused),
		WITH(test_who_was_not_first_leaves_nothing),
		WITH(test_who_is_cancelled_leaves_nothing),
		WITH(test_who_tries_again_takes_what_was_left),
		WITH(test_a_layout_without_its_note_is_mended),
		WITH(test_names_are_not_parts_of_urls),
		WITH(test_what_is_there_is_opened_again),
		cmocka_unit_test(test_what_the_server_says_is_told),
		cmocka_unit_test(test_a_password_opens_what_is_private),
		cmocka_unit_test(test_who_is_not_there_is_named),
		cmocka_unit_test_setup_teardown(
			test_only_whom_a_trusted_one_vouches_for_is_asked,
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
