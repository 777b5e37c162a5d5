/* SPDX-License-Identifier: Apache-2.0 */
/* impostor.h - a faulty daemon: it answers wrongly, late or not at all.  One
 * thread serves any number of connections. */
#ifndef KV_TESTS_KERNELS_IMPOSTOR_H
#define KV_TESTS_KERNELS_IMPOSTOR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <cmocka.h>

#include "kernels/kvfs.h"
#include "kernels/session/rpc.h"

#define IMPOSTOR_SLOTS 32

struct impostor {
	char dir[64], path[96];
	int listener, stop[2];
	pthread_t thread;
	/* Answer @packet on @fd, or ignore it; the descriptor of @packet is
	 * closed after the call. */
	void (*answer)(struct impostor *i, int fd, struct kv_packet *packet);
	/* newest protocol version that the daemon reports in HELLO */
	_Atomic uint32_t version;
	/* oldest protocol version that the daemon reports in HELLO */
	_Atomic uint32_t oldest;
	atomic_bool strict;	/* true: refuse clients of other versions */
	atomic_int connections; /* number of connections accepted so far */
	/* tells answer() what to do; set by the test */
	atomic_int mode;
	/* set by answer(): close this connection now */
	bool hang_up;
	/* a value that answer() sets and the test reads */
	_Atomic uint64_t seen;
	/* a connection that answer() remembers */
	int other;
};

static inline void impostor_reply(int fd, const struct kv_packet *request,
				  void *items, size_t bytes, uint32_t count)
{
	struct kv_packet reply = {.header = request->header,
				  .items = items,
				  .bytes = bytes,
				  .fd = -1};

	reply.header.flags |= WIRE_REPLY;
	reply.header.count = count;
	kv_link_send(fd, &reply, 0);
}

/* Answer with a space that can be read: number 1, no layout. */
static inline void impostor_space(int fd, const struct kv_packet *request)
{
	struct wire_space space = {.id = 1, .writable = 1};

	impostor_reply(fd, request, &space, sizeof(space), 0);
}

static inline bool impostor_serve(struct impostor *i, int fd)
{
	static uint8_t items[WIRE_MAX];
	struct kv_packet packet = {.items = items, .bytes = sizeof(items)};
	struct wire_hello hello = {
		.version = i->version, .oldest = i->oldest, .epoch = 1};
	const struct wire_hello *asked = (struct wire_hello *)items;

	if (kv_link_receive(fd, &packet, 0) < 0)
		return false;
	i->hang_up = false;
	if (packet.header.type == WIRE_HELLO) {
		if (i->strict && asked->version != i->version)
			packet.header.status = -EPROTONOSUPPORT;
		i->hang_up = packet.header.status < 0;
		impostor_reply(fd, &packet, &hello, sizeof(hello), 1);
	} else {
		i->answer(i, fd, &packet);
	}
	kv_closep(&packet.fd);
	return !i->hang_up;
}

static inline void *impostor_run(void *arg)
{
	struct impostor *i = arg;
	struct pollfd fds[IMPOSTOR_SLOTS];
	int n = 2, k;

	fds[0] = (struct pollfd){.fd = i->stop[0], .events = POLLIN};
	fds[1] = (struct pollfd){.fd = i->listener, .events = POLLIN};
	while (poll(fds, (nfds_t)n, -1) > 0 && fds[0].revents == 0) {
		for (k = 2; k < n; k++)
			if (fds[k].revents && !impostor_serve(i, fds[k].fd)) {
				close(fds[k].fd);
				fds[k] = fds[--n];
			}
		if (fds[1].revents && n < IMPOSTOR_SLOTS) {
			fds[n++] = (struct pollfd){
				.fd = accept(i->listener, NULL, NULL),
				.events = POLLIN};
			i->connections++;
		}
	}
	while (n > 2)
		close(fds[--n].fd);
	return NULL;
}

static inline int impostor_setup(void **state)
{
	struct impostor *i = calloc(1, sizeof(*i));
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	*state = i;
	i->version = WIRE_VERSION;
	strcpy(i->dir, "/tmp/kvfs-impostor-XXXXXX");
	assert_non_null(mkdtemp(i->dir));
	snprintf(i->path, sizeof(i->path), "%s/control", i->dir);
	strcpy(a.sun_path, i->path);
	i->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(i->listener, (struct sockaddr *)&a, sizeof(a)),
			 0);
	assert_int_equal(listen(i->listener, 16), 0);
	assert_int_equal(pipe(i->stop), 0);
	return 0;
}

static inline void impostor_start(struct impostor *i,
				  void (*answer)(struct impostor *i, int fd,
						 struct kv_packet *packet))
{
	i->answer = answer;
	pthread_create(&i->thread, NULL, impostor_run, i);
}

static inline int impostor_teardown(void **state)
{
	struct impostor *i = *state;

	if (i->answer != NULL) {
		assert_int_equal(write(i->stop[1], "", 1), 1);
		pthread_join(i->thread, NULL);
	}
	close(i->listener);
	close(i->stop[0]);
	close(i->stop[1]);
	unlink(i->path);
	rmdir(i->dir);
	free(i);
	return 0;
}

#endif
