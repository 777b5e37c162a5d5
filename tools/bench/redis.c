/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.c - Redis, asked over a UNIX socket without a client library.
 *
 * OWNS      the server process, the socket, and the request, composed once:
 *           only sending it and reading the answers is measured.
 *
 * LOCKING   none: one thread asks.
 */
#include "tools/bench/redis.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tools/bench/clock.h"

#define COMMAND_MAX 128
#define TIMEOUT_MS 10000

struct kv_bench_redis {
	struct kv_bench_children *children;
	pid_t pid;
	int fd;
	size_t names;
	char *request;
	size_t request_bytes;
};

static int start(struct kv_bench_redis *redis, const char *dir,
		 const char *path)
{
	char log[4096];
	char *argv[] = {"redis-server", "--port", "0", "--unixsocket",
			(char *)path,	"--save", "",  "--dir",
			(char *)dir,	NULL};

	snprintf(log, sizeof(log), "%s/redis.log", dir);
	return kv_bench_child_start(redis->children, argv, log, &redis->pid);
}

static int connect_to(struct kv_bench_redis *redis,
		      const struct sockaddr_un *address)
{
	unsigned waited;

	redis->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (redis->fd < 0)
		return -errno;
	for (waited = 0; waited < TIMEOUT_MS; waited += 20) {
		if (connect(redis->fd, (const struct sockaddr *)address,
			    sizeof(*address)) == 0)
			return 0;
		if (!kv_bench_child_alive(redis->children, redis->pid))
			return -EIO;
		kv_bench_sleep_ms(20);
	}
	return -ETIMEDOUT;
}

static int send_all(int fd, const char *data, size_t n)
{
	ssize_t r;

	for (; n; data += r, n -= (size_t)r) {
		r = write(fd, data, n);
		if (r <= 0)
			return r < 0 ? -errno : -EIO;
	}
	return 0;
}

/* @n answers of @bytes each, into @buffer. */
static int receive(int fd, char *buffer, size_t bytes)
{
	ssize_t r;

	for (; bytes; buffer += r, bytes -= (size_t)r) {
		r = read(fd, buffer, bytes);
		if (r <= 0)
			return r < 0 ? -errno : -EIO;
	}
	return 0;
}

static int store(struct kv_bench_redis *redis, char (*names)[65], size_t n)
{
	char command[COMMAND_MAX + 65], answer[5];
	size_t i;
	int length, r;

	for (i = 0; i < n; i++) {
		length =
			snprintf(command, sizeof(command),
				 "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$1\r\n1\r\n",
				 strlen(names[i]), names[i]);
		r = send_all(redis->fd, command, (size_t)length);
		if (r == 0)
			r = receive(redis->fd, answer, sizeof(answer));
		if (r == 0 && memcmp(answer, "+OK\r\n", 5) != 0)
			r = -EIO;
		if (r < 0)
			return r;
	}
	return 0;
}

static int compose(struct kv_bench_redis *redis, char (*names)[65], size_t n)
{
	size_t i, at = 0;

	redis->request = malloc(n * COMMAND_MAX);
	if (!redis->request)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		at += (size_t)snprintf(redis->request + at, COMMAND_MAX,
				       "*2\r\n$6\r\nEXISTS\r\n$%zu\r\n%s\r\n",
				       strlen(names[i]), names[i]);
	redis->names = n;
	redis->request_bytes = at;
	return 0;
}

int kv_bench_redis_new(struct kv_bench_children *children, const char *dir,
		       char (*names)[65], size_t n, size_t present,
		       struct kv_bench_redis **ret_redis)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct kv_bench_redis *redis;
	int r;

	if (strlen(dir) + sizeof("/redis") > sizeof(address.sun_path))
		return -ENAMETOOLONG;
	stpcpy(stpcpy(address.sun_path, dir), "/redis");
	redis = calloc(1, sizeof(*redis));
	if (!redis)
		return -ENOMEM;
	redis->children = children;
	redis->fd = -1;
	r = compose(redis, names, n);
	if (r == 0)
		r = start(redis, dir, address.sun_path);
	if (r == 0)
		r = connect_to(redis, &address);
	if (r == 0)
		r = store(redis, names, present);
	if (r < 0) {
		kv_bench_redis_free(redis);
		return r;
	}
	*ret_redis = redis;
	return 0;
}

void kv_bench_redis_free(struct kv_bench_redis *redis)
{
	if (!redis)
		return;
	if (redis->fd >= 0)
		close(redis->fd);
	kv_bench_child_end(redis->children, redis->pid);
	free(redis->request);
	free(redis);
}

long kv_bench_redis_exists(struct kv_bench_redis *redis)
{
	char answers[4096] = {0};
	size_t i, bytes = 4 * redis->names; /* ":1\r\n" or ":0\r\n" */
	long present = 0;
	int r;

	if (bytes > sizeof(answers))
		return -E2BIG;
	r = send_all(redis->fd, redis->request, redis->request_bytes);
	if (r == 0)
		r = receive(redis->fd, answers, bytes);
	if (r < 0)
		return r;
	for (i = 0; i < bytes; i += 4)
		present += answers[i + 1] == '1';
	return present;
}
