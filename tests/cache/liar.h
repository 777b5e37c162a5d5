/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liar.h - a web server that sends the answer set by the test, valid HTTP or not.
 *
 * The server reads the head of each request, sends the answer, and closes the
 * connection.  The end of an answer may be repeated until the client closes.
 */
#ifndef KV_TESTS_CACHE_LIAR_H
#define KV_TESTS_CACHE_LIAR_H

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>

#include "common/thread.h"

struct liar {
	unsigned port;
	int fd; /* the listening socket */
	pthread_t thread;
	pthread_mutex_t lock;
	/* @once answers one request whose head begins with @first, @object all
	 * other requests; NULL: no answer.  Guarded by lock, like the next 3
	 * fields. */
	const char *first, *once, *object;
	size_t object_n;
	/* text repeated after @object until the client closes; "": no more
	 * bytes */
	const char *forever;
	char asked_for[2048]; /* first lines of all requests received */
	/* Read a second request on a connection, then close it unanswered. */
	_Atomic bool drops;
	/* Sent in place of the answer to any but the first request of a
	 * connection; NULL: the normal answer is sent. */
	_Atomic(const char *) surplus;
	/* Keep a connection open until the client opens another one. */
	_Atomic bool keeps;
	int at; /* socket of the current connection */
	unsigned asked;
	char put[16]; /* body of the last request with a Content-Length */
};

/* Send @n bytes.  Return -1 if the client has closed the connection, which it
 * may do after a wrong answer. */
static inline int liar_say(int fd, const char *what, size_t n)
{
	while (n > 0) {
		ssize_t put = send(fd, what, n, MSG_NOSIGNAL);

		if (put < 0)
			return -1;
		what += put;
		n -= (size_t)put;
	}
	return 0;
}

/* Read the head of a request, maybe with bytes of its body, and return the
 * number of bytes; 0: the connection has ended before. */
static inline size_t liar_listen(int fd, char *head, size_t room)
{
	size_t n = 0;

	while (n + 1 < room) {
		ssize_t got = recv(fd, head + n, room - 1 - n, 0);

		if (got <= 0)
			return 0;
		n += (size_t)got;
		head[n] = '\0';
		if (strstr(head, "\r\n\r\n"))
			break;
	}
	return n;
}

/* Read the body that follows @head, of which @have bytes were read with it, if it fits
 * into liar->put. */
static inline void liar_take(struct liar *liar, int fd, const char *head,
			     size_t have)
{
	const char *length = strcasestr(head, "\r\nContent-Length: ");
	const char *body = strstr(head, "\r\n\r\n");
	size_t n = length ? strtoul(length + 18, NULL, 10) : 0, got;
	ssize_t more = 1;

	if (n == 0 || n >= sizeof(liar->put) || !body)
		return;
	got = have - (size_t)(body + 4 - head);
	memcpy(liar->put, body + 4, KV_MIN(got, n));
	for (; got < n && more > 0; got += (size_t)more)
		more = recv(fd, liar->put + got, n - got, 0);
	liar->put[n] = '\0';
}

static inline void liar_wait_for_end(int fd)
{
	struct pollfd until = {fd, POLLRDHUP, 0};

	poll(&until, 1, -1);
}

/* Wait for a request on @fd or for another connection.  Return true if only
 * another connection came. */
static inline bool liar_sees_another(struct liar *liar, int fd)
{
	struct pollfd fds[] = {{liar->fd, POLLIN, 0}, {fd, POLLIN, 0}};

	poll(fds, 2, -1);
	return !fds[1].revents;
}

static inline bool liar_answer(struct liar *liar, int fd, bool first)
{
	char head[16384];
	const char *said, *forever;
	/* copy of the answer, because the test may free the original */
	char *what = NULL;
	size_t n = liar_listen(fd, head, sizeof(head));

	if (n == 0)
		return false;
	pthread_mutex_lock(&liar->lock);
	liar->asked++;
	liar->at = fd;
	liar_take(liar, fd, head, n);
	n = strlen(liar->asked_for);
	snprintf(liar->asked_for + n, sizeof(liar->asked_for) - n, "%.*s\n",
		 (int)strcspn(head, "\r"), head);
	said = liar->object;
	n = liar->object_n;
	forever = liar->forever;
	if (liar->first &&
	    strncmp(head, liar->first, strlen(liar->first)) == 0) {
		said = liar->once;
		n = strlen(said);
		forever = liar->first = NULL;
	}
	if (!first && liar->surplus) {
		said = liar->surplus;
		n = strlen(said);
	}
	if (said && (what = malloc(n + 1)))
		memcpy(what, said, n);
	pthread_mutex_unlock(&liar->lock);
	if (!what)
		liar_wait_for_end(fd);
	else if (liar_say(fd, what, n) == 0 && forever && !*forever)
		liar_wait_for_end(fd);
	else if (forever)
		while (liar_say(fd, forever, strlen(forever)) == 0)
			;
	free(what);
	n = liar->drops ? liar_listen(fd, head, sizeof(head)) : 0;
	if (n > 0)
		liar_take(liar, fd, head, n);
	if (!liar->keeps)
		shutdown(fd, SHUT_WR);
	return liar->keeps;
}

static inline void *liar_run(void *arg)
{
	struct liar *liar = arg;
	int fd, last = -1;
	bool first;

	while ((fd = accept4(liar->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		first = true;
		while (liar_answer(liar, fd, first) &&
		       !liar_sees_another(liar, fd))
			first = false;
		/* Keep the last connection open for now: closing it at once
		 * could discard its answer. */
		if (last >= 0)
			close(last);
		last = fd;
	}
	if (last >= 0)
		close(last);
	return NULL;
}

static inline void liar_start(struct liar *liar)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t n = sizeof(address);

	memset(liar, 0, sizeof(*liar));
	pthread_mutex_init(&liar->lock, NULL);
	liar->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(liar->fd, (struct sockaddr *)&address, n) < 0 ||
	    listen(liar->fd, 128) < 0 ||
	    getsockname(liar->fd, (struct sockaddr *)&address, &n) < 0 ||
	    kv_thread_start(&liar->thread, "liar", liar_run, liar) != 0)
		abort();
	liar->port = ntohs(address.sin_port);
}

static inline void liar_tell(struct liar *liar, const char *object, size_t n,
			     const char *forever)
{
	pthread_mutex_lock(&liar->lock);
	liar->object = object;
	liar->object_n = n;
	liar->forever = forever;
	pthread_mutex_unlock(&liar->lock);
}

/* Answer @once to the next request that begins with @first. */
static inline void liar_once(struct liar *liar, const char *first,
			     const char *once)
{
	pthread_mutex_lock(&liar->lock);
	liar->first = first;
	liar->once = once;
	liar->asked_for[0] = '\0';
	pthread_mutex_unlock(&liar->lock);
}

/* Call this when no client is connected any more. */
static inline void liar_stop(struct liar *liar)
{
	shutdown(liar->fd, SHUT_RDWR);
	pthread_join(liar->thread, NULL);
	close(liar->fd);
	pthread_mutex_destroy(&liar->lock);
}

#endif
