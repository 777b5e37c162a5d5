/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers and writes of a helper of the remote tier: a backend makes its calls while a
 * thread answers from the input, and hangs up at the end of the input.
 */
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "cache/remote/helper.h"
#include "tests/fuzz/fuzz.h"

#define OPS 12u
#define ROOM 500u
#define LANDING 4096u /* room for few calls: others wait */

static struct {
	struct fuzz f;
	int socket; /* -1: not started */
	uint64_t can;
	uint8_t *landing;
	pthread_t thread;
	uint64_t ids[64];
	uint64_t at[64];
	unsigned n;
} player;

static bool receive_hello(void)
{
	struct {
		struct kv_helper_head head;
		struct kv_helper_hello hello;
	} packet;
	struct iovec part = {&packet, sizeof(packet)};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control)};
	int fd;

	fuzz_must(recvmsg(player.socket, &message, 0) == sizeof(packet));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	player.landing =
		mmap(NULL, LANDING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	packet.hello.status = 0;
	packet.hello.landing |= player.can;
	return send(player.socket, &packet, sizeof(packet), MSG_NOSIGNAL) > 0;
}

static void remember(const uint8_t *packet, size_t n)
{
	struct kv_helper_request request;

	packet += sizeof(struct kv_helper_head);
	n -= sizeof(struct kv_helper_head);
	for (; n >= sizeof(request); n -= sizeof(request)) {
		memcpy(&request, packet, sizeof(request));
		packet += sizeof(request);
		fuzz_must(request.at + KV_HELPER_NOTE + request.bytes <=
			  LANDING);
		fuzz_must(request.call != KV_REMOTE_CLEAR || player.can);
		player.ids[player.n % 64] = request.id;
		player.at[player.n++ % 64] = request.at;
	}
}

/* Write a note, whose name and length may be right. */
static void write_note(struct fuzz *f, uint8_t *to)
{
	unsigned length = fuzz_u16(f);
	size_t n;

	if (length & 0x8000) {
		uint8_t *bytes = fuzz_take(f, KV_HELPER_NOTE, &n);

		memcpy(to, bytes, n);
		free(bytes);
		return;
	}
	snprintf((char *)to, KV_HELPER_NOTE, "k %032d %u\n", 0, length);
}

/* Answer a call.  Bits of the input: 1 any bytes; 2 any id; 4 write a note; 8
 * answer again before reading the next call. */
static bool answer(struct fuzz *f)
{
	struct {
		struct kv_helper_head head;
		struct kv_helper_answer item;
	} packet = {{KV_HELPER_DO, 1, 0}, {0}};
	unsigned how = fuzz_byte(f), which = fuzz_byte(f) % 64;
	size_t n = fuzz_u16(f);

	if (how & 1) {
		uint8_t *bytes = fuzz_take(f, n, &n);

		send(player.socket, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
		free(bytes);
		return how & 8;
	}
	packet.item.id = how & 2 ? n : player.ids[which];
	packet.item.status = how & 16 ? (int8_t)fuzz_byte(f) : 0;
	packet.item.bytes = fuzz_u16(f);
	if (how & 4)
		write_note(f, player.landing + player.at[which]);
	send(player.socket, &packet, sizeof(packet),
	     MSG_NOSIGNAL | MSG_DONTWAIT);
	return how & 8;
}

/* Read a call.  Returns false if the other end is closed; true also if no call
 * came. */
static bool hear(void)
{
	static uint8_t packet[65536];
	struct pollfd fd = {player.socket, POLLIN, 0};
	ssize_t n;

	if (poll(&fd, 1, 2) <= 0)
		return true;
	n = recv(player.socket, packet, sizeof(packet), 0);
	if (n > 0 && packet[0] == KV_HELPER_DO)
		remember(packet, (size_t)n);
	return n > 0;
}

static void *play(void *arg)
{
	(void)arg;
	if (receive_hello())
		while (player.f.left && hear())
			while (answer(&player.f) && player.f.left)
				;
	munmap(player.landing, LANDING);
	close(player.socket);
	return NULL;
}

static int start(const struct kv_launch *launch, struct kv_child *ret_child,
		 const char **ret_what)
{
	*ret_what = NULL;
	if (player.socket >= 0)
		return -EIO;
	player.socket = dup(launch->fd);
	fuzz_must(player.socket >= 0);
	*ret_child = (struct kv_child){.pidfd = -1};
	return -pthread_create(&player.thread, NULL, play, NULL);
}

static void reap(struct kv_helper *helper, unsigned n)
{
	struct kv_remote_op *ended[4];

	while (n > 0) {
		struct pollfd fd = {kv_helper_fd(helper), POLLIN, 0};
		size_t some;
		int ready;

		do /* libFuzzer's alarm interrupts it */
			ready = poll(&fd, 1, 20000);
		while (ready < 0 && errno == EINTR);
		fuzz_must(ready == 1);
		some = kv_helper_reap(helper, ended, 4);
		for (size_t i = 0; i < some; i++) {
			fuzz_must(ended[i]->status <= 0);
			fuzz_must(ended[i]->call != KV_REMOTE_GET ||
				  ended[i]->status < 0 ||
				  ended[i]->length <= ROOM);
		}
		n -= (unsigned)some;
	}
}

static void use(struct kv_helper *helper, unsigned order, unsigned cancels)
{
	struct kv_remote_op ops[OPS] = {0}, *all[OPS];

	for (unsigned i = 0; i < OPS; i++) {
		ops[i].call =
			(enum kv_remote_call)((order + i) % KV_REMOTE_CALLS);
		strcpy(ops[i].name, "t/s/k");
		ops[i].room = ops[i].length = ROOM;
		ops[i].data =
			/* exact size, for a sanitizer to detect overruns */
			malloc(ROOM);
		fuzz_must(ops[i].data);
		memset(ops[i].data, 1, ROOM);
		all[i] = &ops[i];
	}
	kv_helper_submit(helper, all, OPS / 2);
	kv_helper_submit(helper, all + OPS / 2, OPS / 2);
	for (unsigned i = 0; i < OPS; i++)
		if (cancels >> i & 1)
			kv_helper_cancel(helper, &ops[i]);
	reap(helper, OPS);
	for (unsigned i = 0; i < OPS; i++)
		free(ops[i].data);
}

/* Input: which calls come first, and whether one is a clear; which calls are
 * cancelled; the answers. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kv_helper_config config = {.launch.argv = {"/none"},
					  .url = "/none",
					  .tenant = "t",
					  .landing = LANDING,
					  .hello_ns = 10000000000u,
					  .patience_ns = 10000000000u,
					  .start = start};
	struct fuzz f = {data, size};
	unsigned order = fuzz_byte(&f), cancels = fuzz_u16(&f);
	struct kv_helper *helper;
	char *why = NULL;

	player.f = f;
	player.socket = -1;
	player.can = order & 0x80 ? KV_HELPER_CLEARS : 0;
	player.n = 0;
	memset(player.ids, 0, sizeof(player.ids));
	memset(player.at, 0, sizeof(player.at));
	/* A helper that hangs up at once may fail to open. */
	fuzz_must(kv_helper_open(&config, &helper) == 0);
	if (kv_helper_await(helper, &why) == 0)
		use(helper, order, cancels);
	fuzz_must(kv_helper_close(helper) == 0);
	free(why);
	pthread_join(player.thread, NULL);
	return 0;
}
