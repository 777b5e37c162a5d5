/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of web servers of a remote tier: the input is a server's answer.  The operation
 * must end, and may write only to the buffer that it was given.
 */
#include <poll.h>

#include "cache/remote/backend.h"
#include "tests/cache/liar.h"
#include "tests/fuzz/fuzz.h"

#define KEY "00112233445566778899aabbccddeeff"
#define WAIT_MS 20000

static struct liar liar;
static void *backends[2];
static const struct kv_remote_driver *const drivers[] = {&kv_remote_http,
							 &kv_remote_s3};

static void set_up(void)
{
	static const char *const urls[] = {
		"//127.0.0.1:%u/x", "//bucket/x?endpoint=http://127.0.0.1:%u"};
	static const char found[] =
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
	char url[100], *why;

	if (backends[0])
		return;
	liar_start(&liar);
	liar_tell(&liar, found, sizeof(found) - 1, NULL);
	liar_note(&liar, found, sizeof(found) - 1);
	for (size_t i = 0; i < KV_ARRAY_LEN(drivers); i++) {
		snprintf(url, sizeof(url), urls[i], liar.port);
		fuzz_must(drivers[i]->open(url, &backends[i], &why) == 0);
	}
}

static void run(unsigned which, struct kv_remote_op *op)
{
	const struct kv_remote_driver *driver = drivers[which];
	struct pollfd fd = {driver->fd(backends[which]), POLLIN, 0};
	struct kv_remote_op *ended = op;
	int r;

	driver->submit(backends[which], &ended, 1);
	do { /* libFuzzer's alarm */
		r = poll(&fd, 1, WAIT_MS);
	} while (r < 0 && errno == EINTR);
	fuzz_must(r == 1);
	fuzz_must(driver->reap(backends[which], &ended, 1) == 1);
	fuzz_must(ended == op && op->status <= 0);
}

/* Input: the kind of server, the operation, the size of the buffer; then, up to a NUL, the
 * answer to requests for a note, and after it the answer to other requests. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kv_remote_op op = {.name = "1/s/" KEY};
	struct fuzz f = {data, size};
	const unsigned which = fuzz_byte(&f) % 2;
	const uint8_t *end;
	_cleanup_(kv_freep) uint8_t *room = NULL, *note = NULL, *rest = NULL;
	size_t note_n, rest_n;

	set_up();
	op.call = (enum kv_remote_call)(fuzz_byte(&f) % 5);
	op.room = op.length = fuzz_byte(&f);
	op.data = room = malloc(op.room ? op.room : 1);
	fuzz_must(room);
	memset(room, 'x', op.room);
	end = f.left ? memchr(f.at, '\0', f.left) : NULL;
	note = fuzz_take(&f, end ? (size_t)(end - f.at) : 0, &note_n);
	if (end)
		fuzz_byte(&f);
	rest = fuzz_take(&f, f.left, &rest_n);
	liar_note(&liar, (const char *)note, note_n);
	liar_tell(&liar, (const char *)rest, rest_n, NULL);
	run(which, &op);
	liar_note(&liar, NULL, 0); /* the caller has already given up */
	liar_tell(&liar, NULL, 0, NULL);
	fuzz_must(op.call != KV_REMOTE_GET || op.status < 0 ||
		  op.length <= op.room);
	return 0;
}
