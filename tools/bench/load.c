/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - figures of reading calls: loads from DRAM against memcpy, leases
 * against memcpy, loads from SSD against fio, and probes against Redis over a
 * UNIX socket.
 *
 * OWNS      the list of pieces that memcpy copies; the file that fio reads; the
 *           Redis server.
 *
 * INVARIANTS
 *   (1) Load and memcpy copy KV_BENCH_GROUP blocks at a time.  If there are
 *       several groups, memcpy copies a group half-way round from the load's,
 *       so that neither finds its bytes in the processor's cache.
 *   (2) The Redis request is composed once: only sending the request and
 *       reading the answers is timed.
 *
 * LOCKING   none: one thread measures.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/bytes.h"
#include "tools/bench/bench.h"

/* leases timed in a row; one memcpy takes a thousand times as long */
#define LEASES 10

/* ---- from DRAM to a pool ---- */

struct shape {
	const char *name;
	kvfs_pool *pool;
	size_t pieces; /* contiguous pieces of a block */
	double goal;
};

/* List source and destination of each contiguous piece of the pool's views. */
static struct kv_bench_piece *list_pieces(struct kv_bench_rig *rig,
					  const struct shape *shape,
					  kvfs_lease *lease)
{
	size_t blocks = rig->size->blocks, n = shape->pieces, block, i;
	struct kv_bench_piece *list = calloc(blocks * n, sizeof(*list));
	size_t bytes = kv_bench_payload(rig->size) / n;
	char *pages = rig->pages.base;
	const char *data;

	for (block = 0; list && block < blocks; block++) {
		data = kvfs_lease_data(lease, block, NULL);
		for (i = 0; i < n; i++)
			list[block * n + i] = (struct kv_bench_piece){
				pages + (i * blocks + block) * bytes,
				data + i * bytes, bytes};
	}
	return list;
}

static int load_group(const struct shape *shape, kvfs_lease *lease,
		      size_t group, uint64_t *ret_ns)
{
	kvfs_opts opts = {.size = sizeof(opts),
			  .first = group * KV_BENCH_GROUP};
	int64_t pages[KV_BENCH_GROUP];
	kvfs_xfer *xfer;
	uint64_t begin;
	size_t i;
	long r;

	for (i = 0; i < KV_BENCH_GROUP; i++)
		pages[i] = (int64_t)(opts.first + i);
	begin = kv_now_ns();
	r = kvfs_load(shape->pool, lease, KV_BENCH_GROUP, pages, &opts, &xfer);
	if (r < 0)
		return (int)r;
	r = kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER);
	*ret_ns = kv_now_ns() - begin;
	kvfs_xfer_free(xfer);
	return r == KV_BENCH_GROUP ? 0 : -EIO;
}

/* Load all blocks once, to warm up, and compare them with the saved bytes. */
static int load_and_verify(struct kv_bench_rig *rig, const struct shape *shape,
			   kvfs_lease *lease,
			   const struct kv_bench_piece *pieces)
{
	size_t group, i;
	uint64_t ns;
	int r;

	memset(rig->pages.base, 0xff, rig->pages.bytes);
	for (group = 0; group < rig->size->blocks / KV_BENCH_GROUP; group++) {
		r = load_group(shape, lease, group, &ns);
		if (r < 0)
			return r;
	}
	for (i = 0; i < rig->size->blocks * shape->pieces; i++)
		if (memcmp(pieces[i].dst, pieces[i].src, pieces[i].bytes) != 0)
			return -EBADMSG;
	return kv_bench_rig_verify(rig, lease);
}

static int measure_shape(struct kv_bench_rig *rig, const struct shape *shape,
			 kvfs_lease *lease, const struct kv_bench_piece *pieces)
{
	size_t groups = rig->size->blocks / KV_BENCH_GROUP, other, round;
	size_t n = KV_BENCH_GROUP * shape->pieces;
	size_t rounds = groups * (rig->bench->quick ? 1 : 3) + 8;
	double bytes = KV_BENCH_GROUP * (double)kv_bench_payload(rig->size);
	struct kv_bench_sample load = {0}, copy = {0};
	uint64_t ns;
	int r = 0;

	for (round = 0; round < rounds && r == 0; round++) {
		r = load_group(shape, lease, round % groups, &ns);
		kv_bench_sample_add(&load, bytes / (double)ns);
		other = (round + groups / 2) % groups * n;
		ns = kv_bench_crew_copy(rig->crew, pieces + other, n);
		kv_bench_sample_add(&copy, bytes / (double)ns);
	}
	if (r == 0)
		kv_bench_report_speeds(
			rig->bench->report,
			(struct kv_bench_figure){
				.name = shape->name,
				.suffix = rig->size->suffix,
				.against = rig->bench->memcpy_text,
				.least_ratio = shape->goal},
			&load, &copy);
	kv_bench_samples_free(&load, 1);
	kv_bench_samples_free(&copy, 1);
	return r;
}

int kv_bench_load(struct kv_bench_rig *rig)
{
	const struct shape shapes[] = {
		{"load_dram", rig->pools[KV_BENCH_PAGES], 1, 1.4},
		{"load_dram_layers", rig->pools[KV_BENCH_LAYERS],
		 2 * rig->size->layers, 1.4},
		{"load_dram_split", rig->pools[KV_BENCH_SPLIT], 2, 1.4},
		{"load_dram_4k", rig->pools[KV_BENCH_HEADS],
		 kv_bench_payload(rig->size) / KV_BENCH_HEAD, 0.5},
	};
	struct kv_bench_piece *pieces;
	kvfs_lease *lease;
	int r = 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(shapes) && r == 0; i++) {
		if (!kv_bench_report_wants(rig->bench->report, shapes[i].name,
					   rig->size->suffix))
			continue;
		r = kv_bench_rig_acquire(rig, 0, rig->size->blocks, &lease);
		if (r < 0)
			return r;
		pieces = list_pieces(rig, &shapes[i], lease);
		r = pieces ? load_and_verify(rig, &shapes[i], lease, pieces)
			   : -ENOMEM;
		if (r == 0)
			r = measure_shape(rig, &shapes[i], lease, pieces);
		free(pieces);
		kvfs_release(lease);
	}
	return r;
}

/* ---- leases ---- */

/* Lease a group of blocks and get all pointers.  The release is not timed. */
static int lease_group(struct kv_bench_rig *rig, size_t first,
		       const void **pointers, double *ret_us)
{
	uint64_t begin = kv_now_ns();
	kvfs_lease *lease;
	size_t i;
	int r;

	r = kv_bench_rig_acquire(rig, first, KV_BENCH_GROUP, &lease);
	if (r < 0)
		return r;
	for (i = 0; i < KV_BENCH_GROUP; i++)
		pointers[i] = kvfs_lease_data(lease, i, NULL);
	*ret_us = (double)(kv_now_ns() - begin) / 1000;
	for (i = 0; i < KV_BENCH_GROUP; i++)
		if (!pointers[i])
			r = -EIO;
	kvfs_release(lease);
	return r;
}

int kv_bench_lease(struct kv_bench_rig *rig)
{
	size_t groups = rig->size->blocks / KV_BENCH_GROUP, round, i, group;
	size_t rounds = rig->bench->quick ? 8 : 30;
	size_t bytes = kv_bench_payload(rig->size);
	struct kv_bench_sample lease = {0}, copy = {0};
	const void *pointers[KV_BENCH_GROUP];
	double us = 0;
	uint64_t begin;
	int r = 0;

	for (round = 0; round <= rounds && r == 0; round++) {
		group = round % groups * KV_BENCH_GROUP;
		for (i = 0; i < LEASES && r == 0; i++) {
			r = lease_group(rig, group, pointers, &us);
			if (round > 0)
				kv_bench_sample_add(&lease, us);
		}
		/* The blocks stay in DRAM after the release, as no other client
		 * needs room. */
		begin = kv_now_ns();
		for (i = 0; i < KV_BENCH_GROUP && r == 0; i++)
			memcpy((char *)rig->spare.base + i * bytes, pointers[i],
			       bytes);
		us = (double)(kv_now_ns() - begin) / 1000;
		if (round > 0)
			kv_bench_sample_add(&copy, us);
	}
	if (r == 0) {
		kv_bench_report_add(
			rig->bench->report,
			&(struct kv_bench_figure){
				.name = "lease",
				.suffix = rig->size->suffix,
				.value = kv_bench_sample_median(&lease),
				.reference = kv_bench_sample_median(&copy),
				.unit = "us",
				.against = "memcpy, 1 thread",
				.most = 150,
				.least_ratio = 200});
		kv_bench_report_note(rig->bench->report,
				     "127 blocks; p10 %.1f us, p90 %.1f us",
				     kv_bench_sample_percentile(&lease, 10),
				     kv_bench_sample_percentile(&lease, 90));
	}
	kv_bench_samples_free(&lease, 1);
	kv_bench_samples_free(&copy, 1);
	return r;
}

/* ---- from SSD ---- */

/* Load every block from SSD, compare the bytes, and read as many with fio. */
static int cold_round(void *arg, double *ret_speeds)
{
	struct kv_bench_rig *rig = arg;
	uint64_t payload = kv_bench_payload(rig->size), begin;
	uint64_t bytes = rig->size->blocks * payload;
	kvfs_lease *lease;
	int r;

	r = kv_bench_rig_chill(rig);
	if (r < 0)
		return r;
	begin = kv_now_ns();
	r = kv_bench_rig_acquire(rig, 0, rig->size->blocks, &lease);
	if (r < 0)
		return r;
	ret_speeds[0] = (double)bytes / (double)(kv_now_ns() - begin);
	r = kv_bench_rig_verify(rig, lease);
	kvfs_release(lease);
	return r < 0 ? r
		     : kv_bench_fio(rig->bench, payload, bytes, 0,
				    &ret_speeds[1]);
}

int kv_bench_cold(struct kv_bench_rig *rig)
{
	const struct kv_bench_figure figure = {
		.name = "load_ssd_cold",
		.suffix = rig->size->suffix,
		.against = "fio read, O_DIRECT, depth 32",
		.least_ratio = 0.95};
	struct kv_bench_sample samples[2] = {0};
	char path[PATH_MAX];
	int fd, r;

	snprintf(path, sizeof(path), "%s/fio", rig->bench->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = kv_write_all(fd, rig->pages.base, rig->pages.bytes);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	/* Drop the file from the page cache: fio must read from the disk. */
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	if (r == 0)
		r = kv_bench_rounds(cold_round, rig, rig->bench->rounds,
				    samples, 2);
	if (r == 0)
		kv_bench_report_speeds(rig->bench->report, figure, &samples[0],
				       &samples[1]);
	kv_bench_samples_free(samples, 2);
	return r;
}

/* ---- probes ---- */

#define KEYS 128
#define PRESENT 64
#define CALLS 20000
#define TURN 500 /* probes, or Redis requests, timed in a row */
#define COMMAND_MAX 128
#define TIMEOUT_MS 10000

struct redis {
	pid_t pid;
	int fd;
	char *request;
	size_t request_bytes;
};

/* Read answers until @buffer has @bytes. */
static int receive(int fd, char *buffer, size_t bytes)
{
	ssize_t r = recv(fd, buffer, bytes, MSG_WAITALL);

	return r < 0 ? -errno : (size_t)r == bytes ? 0 : -EIO;
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

/*
 * Start redis-server in @dir, store the first PRESENT of the @names, and
 * compose the request.
 * -ETIMEDOUT: the server does not answer
 * -ENAMETOOLONG: @dir is too long for a socket's path
 * -EIO, -ENOMEM
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
	r = kv_bench_child_start(argv, log, &redis->pid);
	if (r < 0)
		return r;
	for (waited = 0; connect(redis->fd, (const struct sockaddr *)&address,
				 sizeof(address)) < 0;
	     waited += 20) {
		if (!kv_bench_child_alive(&redis->pid))
			return -EIO;
		if (waited >= TIMEOUT_MS)
			return -ETIMEDOUT;
		usleep(20000);
	}
	return redis_store(redis, names, PRESENT);
}

/* Send an EXISTS for each name in one write.  Return how many names exist. */
static long redis_exists(struct redis *redis)
{
	char answers[4 * KEYS] = {0}; /* for each key ":1\r\n" or ":0\r\n" */
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

/* Time TURN probes of @keys, or if @keys is NULL TURN requests to @redis. */
static int take_turn(struct kv_bench_rig *rig, const kvfs_key *keys,
		     struct redis *redis, struct kv_bench_sample *us)
{
	kvfs_query query = {rig->space, keys, KEYS};
	uint8_t states[KEYS];
	uint64_t begin;

	for (int i = 0; i < TURN; i++) {
		begin = kv_now_ns();
		if ((keys ? kvfs_probe(&query, 1, states)
			  : redis_exists(redis)) != PRESENT)
			return -EIO;
		kv_bench_sample_add(us, (double)(kv_now_ns() - begin) / 1000);
	}
	return 0;
}

int kv_bench_probe(struct kv_bench_rig *rig)
{
	static const struct kv_bench_figure figures[] = {
		{.name = "probe128_p50", .most = 30},
		{.name = "probe128_p99", .most = 200},
	};
	struct redis redis = {.fd = -1};
	struct kv_bench_sample us[2] = {0}, warm = {0}; /* probe, Redis */
	kvfs_key keys[KEYS];
	char names[KEYS][65];
	int r, i;

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
		r = take_turn(rig, keys, NULL, i < 0 ? &warm : &us[0]);
		if (r == 0)
			r = take_turn(rig, NULL, &redis,
				      i < 0 ? &warm : &us[1]);
	}
	for (i = 0; i < 2 && r == 0; i++) {
		struct kv_bench_figure figure = figures[i];
		double percent = i == 0 ? 50 : 99;

		figure.value = kv_bench_sample_percentile(&us[0], percent);
		figure.reference = kv_bench_sample_percentile(&us[1], percent);
		figure.unit = "us";
		figure.against = "Redis, 128 EXISTS, UNIX socket";
		figure.least_ratio = 3;
		kv_bench_report_add(rig->bench->report, &figure);
	}
	if (redis.fd >= 0)
		close(redis.fd);
	kv_bench_child_end(&redis.pid);
	free(redis.request);
	kv_bench_samples_free(us, 2);
	kv_bench_samples_free(&warm, 1);
	return r;
}
