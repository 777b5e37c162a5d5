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
static struct kv_ops *backends[2];
static const struct kv_remote_driver *const drivers[] = {&kv_remote_http,
							 &kv_remote_s3};

static void set_up(void)
{
	static const char *const urls[] = {
		"//127.0.0.1:%u/x", "//bucket/x?endpoint=http://127.0.0.1:%u"};
	static const char found[] =
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
	static const struct kv_remote_config config;
	char url[100], *why;

	if (backends[0])
		return;
	liar_start(&liar);
	liar_tell(&liar, found, sizeof(found) - 1, NULL);
	for (size_t i = 0; i < KV_ARRAY_LEN(drivers); i++) {
		snprintf(url, sizeof(url), urls[i], liar.port);
		fuzz_must(drivers[i]->make(i ? "s3" : "http", url, &config,
					   &backends[i], &why) == 0);
	}
}

static void run(unsigned which, struct kv_remote_op *op)
{
	struct pollfd fd = {backends[which]->event, POLLIN, 0};
	int r;

	kv_ops_submit(backends[which], op);
	do { /* libFuzzer's alarm */
		r = poll(&fd, 1, WAIT_MS);
	} while (r < 0 && errno == EINTR);
	fuzz_must(r == 1);
	fuzz_must(kv_ops_reap(backends[which]) == op && op->status <= 0);
}

/* Input: the kind of server, the operation, the size of the largest object for
 * which the operation has memory (in units of 16 bytes), and the server's
 * answer. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kv_remote_op op = {.name = "1/s/" KEY};
	struct fuzz f = {data, size};
	const unsigned which = fuzz_byte(&f) % 2;
	_cleanup_(kv_freep) uint8_t *rest = NULL;
	size_t rest_n;

	set_up();
	op.call = (enum kv_remote_call)(fuzz_byte(&f) % KV_REMOTE_CALLS);
	op.max = 16u * fuzz_byte(&f);
	rest = fuzz_take(&f, f.left, &rest_n);
	liar_tell(&liar, (const char *)rest, rest_n, NULL);
	if (op.call == KV_REMOTE_PUT)
		op.parts[0] = (struct iovec){rest, rest_n};
	run(which, &op);
	liar_tell(&liar, NULL, 0, NULL);
	fuzz_must(op.call != KV_REMOTE_GET || op.status < 0 ||
		  op.length <= op.max);
	free(op.data);
	return 0;
}
