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

#define KEY "00112233445566778899aabbccddeeff"
#define NAME "1000/space/" KEY
/* No object has this digest: the tests distinguish accepted answers from good ones. */
#define DIGEST "00000000000000000000000000000000"
#define NOTE KEY " " DIGEST " 5"
#define META "x-amz-meta-kvfs: " NOTE "\r\n"
#define SAYS(length) "HTTP/1.1 200 OK\r\nContent-Length: " length "\r\n"

static const char good_note[] = SAYS("68") "\r\n" NOTE "\n";
static const char found[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
static struct liar liar;

/* ---- a name that does not resolve ---- */

static sem_t resolved;
static _Atomic bool hangs;

/* Replaces that of the C library, also for libcurl. */
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

static void test_a_name_that_does_not_resolve_holds_nobody(void **state)
{
	_cleanup_(kv_freep) char *why = NULL, *other = NULL;

	(void)state;
	sem_init(&resolved, 0, 0);
	assert_int_equal(
		kv_remote_http.open("//nobody.invalid/x", &backend, &why),
		-EHOSTUNREACH);
	assert_non_null(strstr(why, "nobody.invalid"));
	/* Not the three seconds of the first request, but a connection's two;
	 * closed, though the resolver is at it still. */
	assert_int_equal(
		kv_remote_http.open("//hangs.invalid/x", &backend, &other),
		-ETIMEDOUT);
	assert_non_null(strstr(other, "Resolving timed out"));
	assert_true(hangs);
	sem_post(&resolved);
}

/* ---- lies ---- */

static void open_on(const struct kv_remote_driver *of, const char *format)
{
	char url[200], *why = NULL;

	snprintf(url, sizeof(url), format, liar.port);
	liar_note(&liar, good_note, sizeof(good_note) - 1);
	liar_tell(&liar, found, sizeof(found) - 1, NULL);
	driver = of;
	if (driver->open(url, &backend, &why) < 0)
		fail_msg("%s", why);
}

static int set_up_http(void **state)
{
	(void)state;
	liar_start(&liar);
	open_on(&kv_remote_http, "//127.0.0.1:%u/x");
	return 0;
}

static int set_up_s3(void **state)
{
	(void)state;
	liar_start(&liar);
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
	/* The truth, first. */
	{SAYS("5") META "\r\nbytes", NULL, 0},
	{"HTTP/1.1 200 OK\r\n" META "\r\nbytes", NULL, 0},
	{"HTTP/1.1 200 OK\r\n" META "Transfer-Encoding: chunked\r\n\r\n"
	 "2\r\nby\r\n3\r\ntes\r\n0\r\n\r\n",
	 NULL, 0},
	{"HTTP/1.1 100 Continue\r\n\r\n" SAYS("5") META "\r\nbytes", NULL, 0},
	{SAYS("5") META "Content-Encoding: gzip\r\n\r\nbytes", NULL, 0},
	/* Bytes after the end of the body are not part of it. */
	{SAYS("5") META "\r\nbytes and more", NULL, 0},
	{SAYS("99999999999999999999") META "\r\nbytes", NULL, 0},
	/* Short, long. */
	{SAYS("5") META "\r\nbyte", NULL, -ECONNRESET},
	{SAYS("4") META "\r\nbyte", NULL, -EBADMSG},
	{SAYS("6") META "\r\nbytes!", NULL, -EBADMSG},
	{SAYS("99999999999") META "\r\n", "bytes", -EBADMSG},
	{"HTTP/1.1 200 OK\r\n" META "\r\nbyte", NULL, -EBADMSG},
	{"HTTP/1.1 200 OK\r\n" META "\r\nbytes!", NULL, -EBADMSG},
	{"HTTP/1.1 200 OK\r\n" META "\r\n", "bytes", -EBADMSG},
	{"HTTP/1.1 200 OK\r\n" META "Transfer-Encoding: chunked\r\n\r\n",
	 "5\r\nbytes\r\n", -EBADMSG},
	{"HTTP/1.1 200 OK\r\n" META "Transfer-Encoding: chunked\r\n\r\n"
	 "5\r\nbytes\r\n",
	 NULL, -ECONNRESET},
	/* Another answer than was asked for. */
	{"HTTP/1.1 206 Partial\r\nContent-Length: 5\r\n" META "\r\nbytes", NULL,
	 -EPROTO},
	{"HTTP/1.1 204 None\r\n" META "\r\n", NULL, -EPROTO},
	{"HTTP/1.1 301 There\r\nLocation: /x/there\r\n"
	 "Content-Length: 0\r\n\r\n",
	 NULL, -EPROTO},
	{"HTTP/1.1 404 No\r\n\r\n", "no ", -ENOENT},
	{"HTTP/1.1 500 Ill\r\n\r\n", "ill ", -EIO},
	{"HTTP/1.1 307 There\r\nLocation: file:///etc/passwd\r\n\r\n", NULL,
	 -EPROTO},
	{SAYS("5") META, "X: y\r\n", -EPROTO},
	{"", "HTTP/1.1 100 Continue\r\n\r\n", -EPROTO},
	{"", NULL, -ECONNRESET},
};

static void test_lies_are_found(void **state)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(lies); i++) {
		struct kv_remote_op op = op_of(KV_REMOTE_GET, NAME);
		char room[16] = "0123456789abcde";
		int status;

		(void)state;
		liar_tell(&liar, lies[i].answer, strlen(lies[i].answer),
			  lies[i].forever);
		op.data = (uint8_t *)room;
		op.room = 8;
		status = do_op(&op);
		if (status != lies[i].status)
			fail_msg("lie %zu: %d", i, status);
		assert_string_equal(room + 5, "56789abcde");
		if (status == 0)
			assert_memory_equal(room, "bytes", 5);
	}
}

/* Not with these errors, but with some. */
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
		{SAYS("-5") META "\r\nbytes", NULL},
		{"HTTP/9.9 200 OK\r\n\r\nbytes", NULL},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" META
		 "\r\nffffffffffffffffff\r\nbytes",
		 NULL},
	};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		struct kv_remote_op op = op_of(KV_REMOTE_GET, NAME);
		char room[16] = "0123456789abcde";

		liar_tell(&liar, cases[i].answer, strlen(cases[i].answer),
			  cases[i].forever);
		op.data = (uint8_t *)room;
		op.room = 8;
		if (do_op(&op) >= 0)
			fail_msg("case %zu", i);
		assert_string_equal(room + 5, "56789abcde");
	}
}

static int exists_with(const char *answer)
{
	liar_tell(&liar, answer, strlen(answer), NULL);
	return status_of(KV_REMOTE_EXISTS, NAME);
}

static void test_a_header_that_is_no_note_is_refused(void **state)
{
	(void)state;
	assert_int_equal(exists_with(SAYS("5") META "\r\n"), 0);
	assert_int_equal(exists_with(SAYS("5") "\r\n"), -EBADMSG);
	assert_int_equal(exists_with(SAYS("6") META "\r\n"), -EBADMSG);
	assert_int_equal(exists_with(SAYS("5") META META "\r\n"), -EBADMSG);
	assert_int_equal(
		exists_with(SAYS("5") "x-amz-meta-kvfs: 1" NOTE "\r\n\r\n"),
		-EBADMSG);
	assert_int_equal(
		exists_with(SAYS("5") "x-amz-meta-kvfs: " NOTE NOTE NOTE
				      "\r\n\r\n"),
		-EBADMSG);
	assert_int_equal(exists_with(SAYS("5") "x-amz-meta-kvfs:\r\n\r\n"),
			 -EBADMSG);
}

static void test_an_object_of_notes_is_bounded(void **state)
{
	static const char *const notes[] = {
		SAYS("67") "\r\n" NOTE,
		SAYS("69") "\r\n" NOTE "\n\n",
		SAYS("140") "\r\n" NOTE "\n" NOTE "\n" NOTE "\n",
		"HTTP/1.1 200 OK\r\n\r\n" NOTE,
		"HTTP/1.1 200 OK\r\n\r\n" NOTE "\n" NOTE "\n" NOTE "\n",
		"HTTP/1.1 206 OK\r\n\r\n" NOTE "\n",
		"HTTP/1.1 204 OK\r\n\r\n" NOTE "\n",
	};

	(void)state;
	assert_int_equal(status_of(KV_REMOTE_EXISTS, NAME), 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(notes); i++) {
		liar_note(&liar, notes[i], strlen(notes[i]));
		assert_true(status_of(KV_REMOTE_EXISTS, NAME) < 0);
	}
}

/* The server closes the connection after the request and before an answer, any number of
 * times: the request is sent again on another connection. */
static void test_a_connection_that_is_closed_costs_nothing(void **state)
{
	static const char taken[] =
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

	(void)state;
	liar.drops = true;
	liar_tell(&liar, taken, sizeof(taken) - 1, NULL);
	for (int i = 0; i < 40; i++) {
		liar.put[0] = '\0';
		assert_int_equal(put(NAME, KV_REMOTE_PUT, "bytes", 5), 0);
		assert_string_equal(liar.put, "bytes");
	}
	/* On the first request of each connection, and on the second. */
	assert_true(liar.asked >= 40);
	liar.drops = false;
}

#define OTHER_KEY "ff112233445566778899aabbccddeeff"
#define OTHER "1000/space/" OTHER_KEY
static const char other_note[] = SAYS("68") "\r\n" OTHER_KEY " " DIGEST " 5\n";

/* As if each answer were the one before's: not on another connection. */
static void test_a_connection_that_damages_is_left(void **state)
{
	int at;

	(void)state;
	liar.keeps = true;
	assert_int_equal(status_of(KV_REMOTE_EXISTS, NAME), 0);
	at = liar.at;
	liar_note(&liar, other_note, sizeof(other_note) - 1);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, NAME), -EBADMSG);
	assert_int_equal(liar.at, at);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OTHER), 0);
	assert_int_not_equal(liar.at, at);
	liar.keeps = false;
}

/* ---- silence ---- */

static struct kv_remote_op ops[MANY];
static uint8_t room[MANY][8];

static void submit_gets(void)
{
	struct kv_remote_op *all[MANY];

	for (size_t i = 0; i < MANY; i++) {
		ops[i] = op_of(KV_REMOTE_GET, NAME);
		ops[i].data = room[i];
		ops[i].room = sizeof(room[i]);
		all[i] = &ops[i];
	}
	driver->submit(backend, all, MANY);
}

/* Wait until the server was asked for an object that it does not tell, or
 * tells half of. */
static void wait_until_asked(void)
{
	unsigned asked = 0;

	while (asked < 2) {
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
		driver->cancel(backend, &ops[i]);
	await(MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(ops[i].status, -ECANCELED);
	/* And those that nobody let go, at the end. */
	submit_gets();
}

static void test_half_an_answer_is_let_go(void **state)
{
	static const char half[] = SAYS("5") META "\r\nby";
	struct kv_remote_op *op = &ops[0];
	struct pollfd fd = {driver->fd(backend), POLLIN, 0};

	(void)state;
	/* A byte a second would do no better. */
	liar_tell(&liar, half, sizeof(half) - 1, "");
	ops[0] = op_of(KV_REMOTE_GET, NAME);
	ops[0].data = room[0];
	ops[0].room = sizeof(room[0]);
	driver->submit(backend, &op, 1);
	assert_int_equal(poll(&fd, 1, 300), 0);
	driver->cancel(backend, op);
	await(1);
	assert_int_equal(ops[0].status, -ECANCELED);
	memset(room[0], 7, sizeof(room[0])); /* now the caller's */
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
		ON(set_up_s3, test_a_header_that_is_no_note_is_refused),
		ON(set_up_http, test_an_object_of_notes_is_bounded),
		ON(set_up_s3, test_a_connection_that_is_closed_costs_nothing),
		ON(set_up_http, test_a_connection_that_damages_is_left),
		ON(set_up_http, test_who_waits_for_silence_is_let_go),
		ON(set_up_s3, test_half_an_answer_is_let_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
