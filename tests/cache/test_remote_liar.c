/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_liar.c - backends on web servers that lie, are slow or stop answering, and
 * host names that do not resolve.
 *
 * OWNS      the server.
 *
 * LOCKING   none.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <semaphore.h>

#include "tests/cache/backend.h"
#include "tests/cache/liar.h"

#define SAYS(length) "HTTP/1.1 200 OK\r\nContent-Length: " length "\r\n"

static const char found[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
static struct liar liar;

/* ---- a host name that does not resolve ---- */

static sem_t resolved;
static _Atomic bool hangs;

/* Replace the C library's getaddrinfo, also for libcurl: "hangs.invalid"
 * hangs. */
int getaddrinfo(const char *node, const char *service,
		const struct addrinfo *hints, struct addrinfo **ret)
{
	int (*real)(const char *, const char *, const struct addrinfo *,
		    struct addrinfo **);

	if (strcmp(node, "hangs.invalid") == 0) {
		hangs = true;
		sem_wait(&resolved);
		return EAI_AGAIN;
	}
	if (strcmp(node, "nobody.invalid") == 0)
		return EAI_NONAME;
	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	return real(node, service, hints, ret);
}

static void make(const struct kv_remote_driver *of, const char *format)
{
	static const struct kv_remote_config config = {0};
	char url[200], *why = NULL;

	snprintf(url, sizeof(url), format, liar.port);
	driver = of;
	if (driver->make(driver->scheme, url, &config, &backend, &why) < 0)
		fail_msg("%s", why);
}

static void test_a_name_that_does_not_resolve_holds_nobody(void **state)
{
	(void)state;
	sem_init(&resolved, 0, 0);
	make(&kv_remote_http, "//nobody.invalid/x");
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "nobody.invalid");
	assert_int_equal(driver->close(backend), 0);
	/* The operation ends within the connection's time-out of two
	 * seconds, and the backend can be closed while the resolver hangs. */
	make(&kv_remote_http, "//hangs.invalid/x");
	must_fail(op_of(KV_REMOTE_HEAD, ""), -EIO, "Resolving timed out");
	assert_true(hangs);
	assert_int_equal(driver->close(backend), 0);
	sem_post(&resolved);
}

/* ---- servers that send wrong answers ---- */

static void open_on(const struct kv_remote_driver *of, const char *format)
{
	liar_start(&liar);
	liar_tell(&liar, found, sizeof(found) - 1, NULL);
	make(of, format);
}

static int set_up_http(void **state)
{
	(void)state;
	open_on(&kv_remote_http, "//127.0.0.1:%u/x");
	return 0;
}

static int set_up_s3(void **state)
{
	(void)state;
	open_on(&kv_remote_s3, "//bucket/x?endpoint=http://127.0.0.1:%u");
	return 0;
}

static int tear_down(void **state)
{
	int r = driver->close(backend);

	(void)state;
	liar_stop(&liar);
	return r;
}

static const struct lie {
	const char *answer, *forever;
	int status;
} lies[] = {
	/* These first answers are correct. */
	{SAYS("5") "\r\nbytes", NULL, 0},
	{"HTTP/1.1 100 Continue\r\n\r\n" SAYS("5") "\r\nbytes", NULL, 0},
	{SAYS("5") "Content-Encoding: gzip\r\n\r\nbytes", NULL, 0},
	/* Bytes after the announced length of the body are ignored. */
	{SAYS("5") "\r\nbytes and more", NULL, 0},
	/* The answer's body is too short, has a wrong length, or has no
	 * length. */
	{SAYS("5") "\r\nbyte", NULL, -EIO},
	{SAYS("0") "\r\n", NULL, -EBADMSG},
	{SAYS("9") "\r\nbytes and", NULL, -EAGAIN},
	{SAYS("99999999999") "\r\n", "bytes", -EAGAIN},
	{SAYS("99999999999999999999") "\r\nbytes", NULL, -EPROTO},
	{"HTTP/1.1 200 OK\r\n\r\nbytes", NULL, -EPROTO},
	{"HTTP/1.1 200 OK\r\n\r\n", "bytes", -EPROTO},
	{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	 "2\r\nby\r\n3\r\ntes\r\n0\r\n\r\n",
	 NULL, -EPROTO},
	{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	 "5\r\nbytes\r\n", -EPROTO},
	/* The answer's status is not that of a whole object: 206, 204,
	 * redirects. */
	{"HTTP/1.1 206 Partial\r\nContent-Length: 5\r\n"
	 "\r\nbytes",
	 NULL, -EPROTO},
	{"HTTP/1.1 204 None\r\n"
	 "\r\n",
	 NULL, -EPROTO},
	{"HTTP/1.1 301 There\r\nLocation: /x/there\r\n"
	 "Content-Length: 0\r\n\r\n",
	 NULL, -EPROTO},
	{"HTTP/1.1 404 No\r\n\r\n", "no ", -ENOENT},
	{"HTTP/1.1 500 Ill\r\n\r\n", "ill ", -EIO},
	{"HTTP/1.1 307 There\r\nLocation: file:///etc/passwd\r\n\r\n", NULL,
	 -EPROTO},
	{SAYS("5"), "X: y\r\n", -EPROTO},
	{"", "HTTP/1.1 100 Continue\r\n\r\n", -EPROTO},
	{"", NULL, -EIO},
};

static void test_lies_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(lies); i++) {
		struct kv_remote_op op = op_of(KV_REMOTE_GET, OBJECT);
		int status;

		liar_tell(&liar, lies[i].answer, strlen(lies[i].answer),
			  lies[i].forever);
		op.max = 8;
		status = do_op(&op);
		if (status != lies[i].status)
			fail_msg("lie %zu: %d, %s", i, status, op.why);
		if (status == 0)
			assert_memory_equal(op.data, "bytes", 5);
		else if (status != -EAGAIN && status != -ENOENT)
			assert_int_not_equal(op.why[0], '\0');
		free(op.data);
	}
}

/* Answers that are not HTTP: each operation must fail, with any error. */
static void test_what_is_no_http_is_no_answer(void **state)
{
	static const struct {
		const char *answer, *forever;
	} cases[] = {
		{"bytes", NULL},
		{"", "bytes"},
		{"\r\n\r\n\r\n", "\r\n"},
		{"HTTP/1.1 200 OK\r\nX: ", "y"},
		{"HTTP/1.1 ", "2"},
		{SAYS("-5") "\r\nbytes", NULL},
		{"HTTP/9.9 200 OK\r\n\r\nbytes", NULL},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
		 "\r\nffffffffffffffffff\r\nbytes",
		 NULL},
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		struct kv_remote_op op = op_of(KV_REMOTE_GET, OBJECT);

		op.max = 8;
		liar_tell(&liar, cases[i].answer, strlen(cases[i].answer),
			  cases[i].forever);
		if (do_op(&op) >= 0)
			fail_msg("case %zu", i);
		free(op.data);
	}
}

/* Error messages show the server's text without control characters. */
static void test_the_cause_is_one_line(void **state)
{
	static const char answer[] =
		"HTTP/1.1 503 Slow\033[2J\tDown\r\nRetry-After: 5\r\n"
		"Content-Length: 0\r\n\r\n";
	struct kv_remote_op op = op_of(KV_REMOTE_GET, OBJECT);

	(void)state;
	liar_tell(&liar, answer, sizeof(answer) - 1, NULL);
	assert_int_equal(do_op(&op), -EIO);
	assert_string_equal(op.why, "503 Slow?[2J?Down");
	assert_true(op.retry_after_ns == UINT64_C(5000000000));
}

/* Like Apache, the server refuses a PUT until MKCOL has made the folders. */
static void test_missing_folders_are_made(void **state)
{
	static const char created[] =
		"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
	static const char absent[] =
		"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
	static const char conflict[] =
		"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n";

	(void)state;
	liar_tell(&liar, created, sizeof(created) - 1, NULL);
	liar_once(&liar, "PUT", conflict);
	assert_int_equal(put("1000/2-s/k", "bytes", 5), 0);
	assert_string_equal(liar.put, "bytes");
	assert_string_equal(liar.asked_for, "PUT /x/1000/2-s/k HTTP/1.1\n"
					    "MKCOL /x/ HTTP/1.1\n"
					    "MKCOL /x/1000/ HTTP/1.1\n"
					    "MKCOL /x/1000/2-s/ HTTP/1.1\n"
					    "PUT /x/1000/2-s/k HTTP/1.1\n");
	/* The folders are made only once: if the PUT after that fails (409,
	 * 404), so does the operation. */
	liar_tell(&liar, conflict, sizeof(conflict) - 1, NULL);
	must_fail(put_of("1000/2-s/k", "bytes", 5), -EIO, "409 Conflict");
	liar_tell(&liar, absent, sizeof(absent) - 1, NULL);
	must_fail(put_of("1000/2-s/k", "bytes", 5), -EIO, "404 No");
}

static void test_error_codes_of_s3_are_shown(void **state)
{
#define XML(code)                                                        \
	"Content-Type: application/xml\r\n\r\n<?xml version=\"1.0\"?>\n" \
	"<Error><Code>" code "</Code><Message>It is so.</Message></Error>"
	static const struct {
		const char *answer, *why;
		int status;
	} cases[] = {
		{"404 Not Found\r\n" XML("NoSuchKey"), "", -ENOENT},
		{"404 Not Found\r\n" XML("NoSuchBucket"), "NoSuchBucket (404)",
		 -EIO},
		{"403 Forbidden\r\n" XML("AccessDenied"), "AccessDenied (403)",
		 -EACCES},
		{"403 Forbidden\r\n" XML("InvalidAccessKeyId"),
		 "InvalidAccessKeyId (403)", -EPERM},
		{"403 Forbidden\r\n" XML("SignatureDoesNotMatch"),
		 "SignatureDoesNotMatch (403)", -EPERM},
		{"400 Bad Request\r\n" XML("ExpiredToken"),
		 "ExpiredToken (400)", -EPERM},
		{"503 Slow Down\r\n" XML("SlowDown"), "SlowDown (503)", -EIO},
		{"403 Forbidden\r\n" XML("QuotaExceeded"),
		 "QuotaExceeded (403)", -ENOSPC},
		{"500 Ill\r\n\r\n<Code>", "500 Ill", -EIO},
		{"403 Forbidden\r\n\r\n", "403 Forbidden", -EACCES},
	};
	char answer[400];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		int n = snprintf(answer, sizeof(answer), "HTTP/1.1 %s",
				 cases[i].answer);

		liar_tell(&liar, answer, (size_t)n, NULL);
		must_fail(op_of(KV_REMOTE_GET, OBJECT), cases[i].status,
			  cases[i].why);
	}
	liar_tell(&liar, answer, 0, NULL);
}

/* A lying server lists objects outside of the folder: none of them is
 * deleted. */
static void test_a_list_of_other_objects_deletes_nothing(void **state)
{
	static const char *const lists[] = {
		"<Key>x/1000/2-other/k</Key>",
		"<Key>x/1000/2-s/</Key>",
		"<Key>k</Key>",
		"<Key>x/1000/2-s/k</Key><Key>y/1000/2-s/k</Key>",
	};
	char answer[400];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(lists); i++) {
		int n = snprintf(answer, sizeof(answer),
				 "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n"
				 "\r\n%s",
				 strlen(lists[i]), lists[i]);

		liar_tell(&liar, answer, (size_t)n, NULL);
		must_fail(op_of(KV_REMOTE_DELETE, "1000/2-s/"), -EPROTO,
			  "other objects");
	}
	pthread_mutex_lock(&liar.lock);
	assert_null(strstr(liar.asked_for, "POST"));
	assert_null(strstr(liar.asked_for, "DELETE"));
	pthread_mutex_unlock(&liar.lock);
}

/* A server that lists deleted objects again must not cause an endless loop. */
static void test_deleted_objects_that_stay_end_it(void **state)
{
	static const char list[] =
		"HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n"
		"<Key>x/1000/2-s/k </Key>abc";

	(void)state;
	liar_tell(&liar, list, sizeof(list) - 1, NULL);
	must_fail(op_of(KV_REMOTE_DELETE, "1000/2-s/"), -EIO, "stay");
}

/* Any number of times, the server closes the connection after the request,
 * without an answer: the request is sent again on another connection. */
static void test_a_connection_that_is_closed_costs_nothing(void **state)
{
	static const char taken[] =
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

	(void)state;
	liar.drops = true;
	liar_tell(&liar, taken, sizeof(taken) - 1, NULL);
	for (int i = 0; i < 40; i++) {
		liar.put[0] = '\0';
		assert_int_equal(put(OBJECT, "bytes", 5), 0);
		assert_string_equal(liar.put, "bytes");
	}
	/* The server answered each PUT on a connection of its own. */
	assert_true(liar.asked >= 40);
	liar.drops = false;
}

/* The rest of an earlier answer arrives as the next answer: the request is sent
 * again on a new connection. */
static void test_surplus_bytes_spoil_no_other_answer(void **state)
{
	static const char answer[] = SAYS("5") "\r\nbytes";

	(void)state;
	liar.surplus = "and more bytes than announced\r\n\r\n";
	liar.keeps = true;
	liar_tell(&liar, answer, sizeof(answer) - 1, NULL);
	for (int i = 0; i < 10; i++)
		assert_int_equal(status_of(KV_REMOTE_GET, OBJECT), 0);
	liar.keeps = false;
	liar.surplus = NULL;
	liar_tell(&liar, found, sizeof(found) - 1, NULL);
	status_of(KV_REMOTE_HEAD, OBJECT);
}

/* ---- servers that stop answering ---- */

static struct kv_remote_op ops[MANY];

static void submit_gets(void)
{
	for (size_t i = 0; i < MANY; i++) {
		ops[i] = op_of(KV_REMOTE_GET, OBJECT);
		kv_ops_submit(backend, &ops[i]);
	}
}

/* Wait until the server has received a request, which it answers in part or not
 * at all. */
static void wait_until_asked(void)
{
	unsigned asked = 0;

	while (asked < 1) {
		pthread_mutex_lock(&liar.lock);
		asked = liar.asked;
		pthread_mutex_unlock(&liar.lock);
		usleep(1000);
	}
}

static void test_who_waits_for_silence_is_let_go(void **state)
{
	(void)state;
	liar_tell(&liar, NULL, 0, NULL);
	submit_gets();
	wait_until_asked();
	for (size_t i = 0; i < MANY; i++)
		kv_ops_cancel(backend, &ops[i]);
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(ops[i].status, -ECANCELED);
	/* Closing the backend cancels these operations. */
	submit_gets();
}

static void test_half_an_answer_is_let_go(void **state)
{
	static const char half[] = SAYS("5") "\r\nby";
	struct kv_remote_op *op = &ops[0];
	struct pollfd fd = {backend->event, POLLIN, 0};

	(void)state;
	/* Half of the answer's body arrives, and then no byte. */
	liar_tell(&liar, half, sizeof(half) - 1, "");
	ops[0] = op_of(KV_REMOTE_GET, OBJECT);
	kv_ops_submit(backend, op);
	assert_int_equal(poll(&fd, 1, 300), 0);
	kv_ops_cancel(backend, op);
	await(1);
	assert_int_equal(ops[0].status, -ECANCELED);
	free(ops[0].data);
}

#define ON(set_up, test) \
	cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_a_name_that_does_not_resolve_holds_nobody),
		ON(set_up_http, test_lies_are_found),
		ON(set_up_s3, test_lies_are_found),
		ON(set_up_http, test_what_is_no_http_is_no_answer),
		ON(set_up_s3, test_what_is_no_http_is_no_answer),
		ON(set_up_http, test_the_cause_is_one_line),
		ON(set_up_http, test_missing_folders_are_made),
		ON(set_up_s3, test_error_codes_of_s3_are_shown),
		ON(set_up_s3, test_a_list_of_other_objects_deletes_nothing),
		ON(set_up_s3, test_deleted_objects_that_stay_end_it),
		ON(set_up_s3, test_a_connection_that_is_closed_costs_nothing),
		ON(set_up_http, test_surplus_bytes_spoil_no_other_answer),
		ON(set_up_http, test_who_waits_for_silence_is_let_go),
		ON(set_up_s3, test_half_an_answer_is_let_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
