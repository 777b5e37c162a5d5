/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - a probe of 128 keys, against Redis over a UNIX socket without a
 * client library.
 *
 * OWNS      the Redis server for the time of the measurement, the socket, and
 *           the request.  The request is composed once: only sending it and
 *           reading the answers is measured.
 *
 * LOCKING   none: one thread asks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/bytes.h"
#include "tools/bench/bench.h"

#define KEYS 128
#define PRESENT 64
#define CALLS 20000
#define TURN 500 /* calls of one side before the other side's turn */
#define COMMAND_MAX 128
#define TIMEOUT_MS 10000

struct redis {
	struct kv_bench_children *children;
	pid_t pid;
	int fd;
	char *request;
	size_t request_bytes;
};

/* Read answers of @bytes in all into @buffer. */
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

static int redis_store(struct redis *redis, char (*names)[65], size_t n)
{
	char command[COMMAND_MAX + 65], answer[5];
	size_t i;
	int length, r;

	for (i = 0; i < n; i++) {
		length =
			snprintf(command, sizeof(command),
				 "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$1\r\n1\r\n",
				 strlen(names[i]), names[i]);
		r = kv_write_all(redis->fd, command, (size_t)length);
		if (r == 0)
			r = receive(redis->fd, answer, sizeof(answer));
		if (r == 0 && memcmp(answer, "+OK\r\n", 5) != 0)
			r = -EIO;
		if (r < 0)
			return r;
	}
	return 0;
}

static void redis_end(struct redis *redis)
{
	if (redis->fd >= 0)
		close(redis->fd);
	kv_bench_child_end(redis->children, redis->pid);
	free(redis->request);
}

/*
 * Start redis-server in @dir, store the first PRESENT of the @names, and compose
 * the request.  -ETIMEDOUT: the server does not answer; -ENAMETOOLONG: @dir;
 * -EIO; -ENOMEM.
 */
static int redis_start(struct redis *redis, const char *dir, char (*names)[65])
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char log[4096];
	char *argv[] = {"redis-server",	  "--port", "0", "--unixsocket",
			address.sun_path, "--save", "",	 "--dir",
			(char *)dir,	  NULL};
	unsigned waited;
	size_t i;
	int r;

	if (strlen(dir) + sizeof("/redis") > sizeof(address.sun_path))
		return -ENAMETOOLONG;
	stpcpy(stpcpy(address.sun_path, dir), "/redis");
	redis->request = malloc(KEYS * COMMAND_MAX);
	if (!redis->request)
		return -ENOMEM;
	for (i = 0; i < KEYS; i++)
		redis->request_bytes += (size_t)snprintf(
			redis->request + redis->request_bytes, COMMAND_MAX,
			"*2\r\n$6\r\nEXISTS\r\n$%zu\r\n%s"
			"\r\n",
			strlen(names[i]), names[i]);
	redis->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (redis->fd < 0)
		return -errno;
	snprintf(log, sizeof(log), "%s/redis.log", dir);
	r = kv_bench_child_start(redis->children, argv, log, &redis->pid);
	if (r < 0)
		return r;
	for (waited = 0; connect(redis->fd, (const struct sockaddr *)&address,
				 sizeof(address)) < 0;
	     waited += 20) {
		if (!kv_bench_child_alive(redis->children, redis->pid))
			return -EIO;
		if (waited >= TIMEOUT_MS)
			return -ETIMEDOUT;
		kv_bench_sleep_ms(20);
	}
	return redis_store(redis, names, PRESENT);
}

/* Send an EXISTS for each of the names in one write.  Return how many exist. */
static long redis_exists(struct redis *redis)
{
	char answers[4 * KEYS] = {0}; /* ":1\r\n" or ":0\r\n" */
	size_t i, bytes = sizeof(answers);
	long present = 0;
	int r;

	r = kv_write_all(redis->fd, redis->request, redis->request_bytes);
	if (r == 0)
		r = receive(redis->fd, answers, bytes);
	if (r < 0)
		return r;
	for (i = 0; i < bytes; i += 4)
		present += answers[i + 1] == '1';
	return present;
}

/* TURN probes of @keys, or of @redis where @keys is NULL. */
static int take_turn(struct kv_bench_rig *rig, const kvfs_key *keys,
		     struct redis *redis, struct kv_bench_sample *us)
{
	kvfs_query query = {rig->space, keys, KEYS};
	uint8_t states[KEYS];
	uint64_t begin;

	for (int i = 0; i < TURN; i++) {
		begin = kv_bench_now();
		if ((keys ? kvfs_probe(&query, 1, states)
			  : redis_exists(redis)) != PRESENT)
			return -EIO;
		kv_bench_sample_add(us,
				    (double)(kv_bench_now() - begin) / 1000);
	}
	return 0;
}

int kv_bench_probe(struct kv_bench_rig *rig)
{
	static const struct kv_bench_figure figures[] = {
		{.name = "probe128_p50", .most = 30},
		{.name = "probe128_p99", .most = 200},
	};
	struct redis redis = {.children = &rig->bench->children, .fd = -1};
	struct kv_bench_sample probe = {0}, exists = {0}, warm = {0};
	kvfs_key keys[KEYS];
	char names[KEYS][65];
	int r, i;

	if (!kv_bench_program_found("redis-server")) {
		for (i = 0; i < 2; i++)
			kv_bench_report_skip(rig->bench->report,
					     figures[i].name, NULL,
					     "redis-server");
		return 0;
	}
	r = kv_bench_rig_keys(rig, keys, KEYS);
	if (r < 0)
		return r;
	for (i = 0; i < KEYS; i++) {
		if (i < PRESENT)
			keys[i] = rig->keys[i];
		kvfs_key_name(&keys[i], names[i]);
	}
	r = redis_start(&redis, rig->bench->dir, names);
	for (i = -TURN; i < CALLS && r == 0; i += TURN) {
		r = take_turn(rig, keys, NULL, i < 0 ? &warm : &probe);
		if (r == 0)
			r = take_turn(rig, NULL, &redis,
				      i < 0 ? &warm : &exists);
	}
	for (i = 0; i < 2 && r == 0; i++) {
		struct kv_bench_figure figure = figures[i];
		double percent = i == 0 ? 50 : 99;

		figure.value = kv_bench_sample_percentile(&probe, percent);
		figure.reference = kv_bench_sample_percentile(&exists, percent);
		figure.unit = "us";
		figure.against = "Redis, 128 EXISTS, UNIX socket";
		figure.least_ratio = 3;
		kv_bench_report_add(rig->bench->report, &figure);
	}
	redis_end(&redis);
	kv_bench_samples_free(&probe, 1);
	kv_bench_samples_free(&exists, 1);
	kv_bench_samples_free(&warm, 1);
	return r;
}
