/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - which of 128 keys are there, against Redis, asked over a UNIX
 * socket without a client library.
 *
 * OWNS      the Redis server for the time of the measurement, the socket, and
 * the request, composed once: only sending it and reading the answers is
 *           measured.
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

#include "tools/bench/clock.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

#define KEYS 128
#define PRESENT 64
#define CALLS 20000
#define TURN 500 /* calls of the one before the other's turn */
#define COMMAND_MAX 128
#define TIMEOUT_MS 10000

struct redis {
	struct kv_bench_children *children;
	pid_t pid;
	int fd;
	size_t names;
	char *request;
	size_t request_bytes;
};

static int redis_start(struct redis *redis, const char *dir, const char *path)
{
	char log[4096];
	char *argv[] = {"redis-server", "--port", "0", "--unixsocket",
			(char *)path,	"--save", "",  "--dir",
			(char *)dir,	NULL};

	snprintf(log, sizeof(log), "%s/redis.log", dir);
	return kv_bench_child_start(redis->children, argv, log, &redis->pid);
}

static int connect_to(struct redis *redis, const struct sockaddr_un *address)
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

static int redis_compose(struct redis *redis, char (*names)[65], size_t n)
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

static void redis_free(struct redis *redis)
{
	if (!redis)
		return;
	if (redis->fd >= 0)
		close(redis->fd);
	kv_bench_child_end(redis->children, redis->pid);
	free(redis->request);
	free(redis);
}

/*
 * Start redis-server in @dir and store the first @present of the @n @names.
 * -ETIMEDOUT: it does not answer; -ENAMETOOLONG: @dir; -EIO; -ENOMEM.
 */
static int redis_new(struct kv_bench_children *children, const char *dir,
		     char (*names)[65], size_t n, size_t present,
		     struct redis **ret_redis)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct redis *redis;
	int r;

	if (strlen(dir) + sizeof("/redis") > sizeof(address.sun_path))
		return -ENAMETOOLONG;
	stpcpy(stpcpy(address.sun_path, dir), "/redis");
	redis = calloc(1, sizeof(*redis));
	if (!redis)
		return -ENOMEM;
	redis->children = children;
	redis->fd = -1;
	r = redis_compose(redis, names, n);
	if (r == 0)
		r = redis_start(redis, dir, address.sun_path);
	if (r == 0)
		r = connect_to(redis, &address);
	if (r == 0)
		r = redis_store(redis, names, present);
	if (r < 0) {
		redis_free(redis);
		return r;
	}
	*ret_redis = redis;
	return 0;
}

/* An EXISTS for each of the names, in one write.  How many are there. */
static long redis_exists(struct redis *redis)
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

static int probe_turn(struct kv_bench_rig *rig, const kvfs_key *keys,
		      struct kv_bench_sample *us)
{
	kvfs_query query = {rig->space, keys, KEYS};
	uint8_t states[KEYS];
	uint64_t begin;
	int i;

	for (i = 0; i < TURN; i++) {
		begin = kv_bench_now();
		if (kvfs_probe(&query, 1, states) != PRESENT)
			return -EIO;
		kv_bench_sample_add(us,
				    (double)(kv_bench_now() - begin) / 1000);
	}
	return 0;
}

static int redis_turn(struct redis *redis, struct kv_bench_sample *us)
{
	uint64_t begin;
	int i;

	for (i = 0; i < TURN; i++) {
		begin = kv_bench_now();
		if (redis_exists(redis) != PRESENT)
			return -EIO;
		kv_bench_sample_add(us,
				    (double)(kv_bench_now() - begin) / 1000);
	}
	return 0;
}

static void report(struct kv_bench_rig *rig, struct kv_bench_sample *probe,
		   struct kv_bench_sample *redis)
{
	static const struct {
		const char *name, *goal;
		double percent, most;
	} figures[] = {
		{"probe128_p50", "<= 30 us, ratio >= 3", 50, 30},
		{"probe128_p99", "<= 200 us, ratio >= 3", 99, 200},
	};
	size_t i;

	for (i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
		double percent = figures[i].percent;
		struct kv_bench_figure figure = {
			.name = figures[i].name,
			.value = kv_bench_sample_percentile(probe, percent),
			.reference = kv_bench_sample_percentile(redis, percent),
			.unit = "us",
			.against = "Redis, 128 EXISTS, UNIX socket",
			.goal = figures[i].goal,
		};

		figure.ratio = figure.reference / figure.value;
		figure.met =
			figure.value <= figures[i].most && figure.ratio >= 3;
		kv_bench_report_add(rig->bench->report, &figure);
	}
}

static int measure(struct kv_bench_rig *rig, const kvfs_key *keys,
		   struct redis *redis)
{
	struct kv_bench_sample probe = {0}, exists = {0}, warm = {0};
	int r, calls;

	r = probe_turn(rig, keys, &warm);
	if (r == 0)
		r = redis_turn(redis, &warm);
	for (calls = 0; calls < CALLS && r == 0; calls += TURN) {
		r = probe_turn(rig, keys, &probe);
		if (r == 0)
			r = redis_turn(redis, &exists);
	}
	if (r == 0)
		report(rig, &probe, &exists);
	kv_bench_sample_fini(&probe);
	kv_bench_sample_fini(&exists);
	kv_bench_sample_fini(&warm);
	return r;
}

int kv_bench_probe(struct kv_bench_rig *rig)
{
	struct redis *redis;
	kvfs_key keys[KEYS];
	char names[KEYS][65];
	int r, i;

	if (!kv_bench_program_found("redis-server")) {
		kv_bench_report_skip(rig->bench->report, "probe128_p50",
				     "redis-server is not installed");
		kv_bench_report_skip(rig->bench->report, "probe128_p99",
				     "redis-server is not installed");
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
	r = redis_new(&rig->bench->children, rig->bench->dir, names, KEYS,
		      PRESENT, &redis);
	if (r < 0)
		return r;
	r = measure(rig, keys, redis);
	redis_free(redis);
	return r;
}
