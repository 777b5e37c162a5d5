/* SPDX-License-Identifier: Apache-2.0 */
/*
 * siege.c - a user who takes as much as it can, and a user who works meanwhile.
 *
 *     siege attack SOCKET MOUNT SECONDS
 *     siege remap SOCKET MOUNT SECONDS  change between two staging memories of 512 MiB
 *     siege read SOCKET MOUNT SECONDS   three clients acquire blocks that are on SSD only
 *     siege work SOCKET MOUNT SECONDS   print latencies and failures
 *
 * OWNS      its connections, and spaces siege-UID, remap and read.
 *
 * LOCKING   none: one thread a process.
 */
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

/* The daemon never gives the id of a segment to another one, and makes 50 and more. */
#define PEER_SEGMENTS 4096
#include "tests/fs/peer.h"

#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]}]}"
#define LARGE                                                                  \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[1048576]}]" \
	"}"
#define PEERS 300
#define KEYS 64

static const char *sock, *mount;
static char name[32];
static uint64_t until;

static bool join(struct peer *p, uint64_t staging)
{
	if (!peer_connect(p, sock))
		return false;
	if (peer_hello(p) < 0 ||
	    peer_space(p, name, LAYOUT, WIRE_SPACE_CREATE, 0700) < 0 ||
	    (staging && peer_staging(p, staging) < 0)) {
		peer_close(p);
		return false;
	}
	return true;
}

static bool join_large(struct peer *p, const char *space)
{
	return peer_connect(p, sock) && peer_hello(p) == 0 &&
	       peer_space(p, space, LARGE, WIRE_SPACE_CREATE, 0700) == 0;
}

static bool go_on(void)
{
	return kv_now_ns() < until;
}

/* ---- the attacker ---- */

static struct peer peers[PEERS];

static void connect_all(void)
{
	size_t n = 0;

	while (n < PEERS && join(&peers[n], 0))
		n++;
	for (size_t i = 0; i < n; i++)
		(void)fcntl(peers[i].fd, F_SETFL, O_NONBLOCK);
	for (unsigned turn = 0; go_on() && turn < 200; turn++)
		for (size_t i = 0; i < n; i++) {
			struct wire_key keys[WIRE_BATCH];

			peer_keys(keys, turn, WIRE_BATCH);
			(void)peer_send(&peers[i],
					&(struct wire_header){
						.type = turn % 3 ? WIRE_PROBE
								 : WIRE_ACQUIRE,
						.count = WIRE_BATCH},
					keys, sizeof(keys), -1);
			/* Read the replies of every second connection only. */
			while (i % 2 &&
			       recv(peers[i].fd, peers[i].in,
				    sizeof(peers[i].in), MSG_DONTWAIT) > 0)
				;
		}
	for (size_t i = 0; i < n; i++)
		peer_close(&peers[i]);
}

static void map_all(void)
{
	size_t n = 0;

	for (; n < 150 && go_on() && join(&peers[n], 0); n++) {
		struct wire_staging staging = {UINT64_C(1) << 40};
		int fd = memfd_create("sparse", MFD_ALLOW_SEALING);

		if (ftruncate(fd, (off_t)staging.bytes) == 0 &&
		    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0)
			(void)peer_call(
				&peers[n],
				&(struct wire_header){.type = WIRE_STAGING,
						      .count = 1},
				&staging, sizeof(staging), fd);
		close(fd);
	}
	while (n > 0)
		peer_close(&peers[--n]);
}

/* Reserve, save and lease blocks until DRAM is full. */
static void fill_dram(void)
{
	uint32_t first = (uint32_t)getpid() << 12;
	struct peer *p = &peers[0];

	if (!join(p, 64 << 16))
		return;
	for (unsigned i = 0; i < 200 && go_on(); i++) {
		(void)peer_save(p, first + i * 64, 64);
		(void)peer_acquire(p, first + i * 64, 64);
	}
	for (unsigned i = 0; i < 64 && go_on(); i++)
		(void)peer_do(p, WIRE_RESERVE, first + 100000 + i * 512, 512);
	sleep(1);
	peer_close(p);
}

static void make_layouts(void)
{
	static char text[60000];
	struct wire_space *space = (struct wire_space *)text;
	size_t at;

	if (!join(&peers[0], 0))
		return;
	for (unsigned i = 0; i < 400 && go_on(); i++) {
		*space = (struct wire_space){.flags = WIRE_SPACE_CREATE};
		at = sizeof(*space);
		at += (size_t)sprintf(text + at, "%s-%d-%u", name, getpid(),
				      i) +
		      1;
		at += (size_t)sprintf(text + at, "{\"tensors\":[");
		for (unsigned j = 0; j < 190; j++)
			at += (size_t)sprintf(text + at,
					      "%s{\"name\":\"%0200u\",\"dtype\""
					      ":\"U8\",\"shape\":[1]}",
					      j ? "," : "", j);
		at += (size_t)sprintf(text + at, "]}");
		(void)peer_send(
			&peers[0],
			&(struct wire_header){
				.type = WIRE_SPACE,
				.count = (uint32_t)(at - sizeof(*space))},
			text, at, -1);
	}
	sleep(1);
	peer_close(&peers[0]);
}

static void open_all(void)
{
	char path[512];
	int fds[15000], n = 0;

	snprintf(path, sizeof(path), "%s/%s/.layout", mount, name);
	while (n < 15000 && go_on() &&
	       (fds[n] = open(path, O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	while (n > 0)
		close(fds[--n]);
	snprintf(path, sizeof(path), "%s/%s/01", mount, name);
	mkdir(path, 0700);
	while (n < 5000 && go_on()) {
		snprintf(path, sizeof(path), "%s/%s/01/01%030x", mount, name,
			 n + 4096 * getpid());
		fds[n] = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fds[n] < 0 || write(fds[n++], "x", 1) < 0)
			break;
	}
	while (n > 0)
		if (fds[--n] >= 0)
			close(fds[n]);
}

static void make_spaces(void)
{
	char path[512];

	for (unsigned i = 0; i < 300 && go_on(); i++) {
		snprintf(path, sizeof(path), "%s/%s-%d-s%u", mount, name,
			 getpid(), i);
		mkdir(path, 0700);
		rmdir(path);
	}
}

static void attack(void)
{
	static void (*const ways[])(void) = {connect_all, map_all,
					     fill_dram,	  make_layouts,
					     open_all,	  make_spaces};
	size_t n = KV_ARRAY_LEN(ways);

	for (size_t i = 0; i < 2 * n; i++)
		if (fork() == 0) {
			srand((unsigned)getpid());
			for (size_t way = i % n; go_on();
			     way = i < n ? way : (size_t)rand() % n)
				ways[way]();
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
}

/* ---- changes of the staging memory ---- */

#define STAGING (UINT64_C(512) << 20)
#define BATCH 16

/* Make the daemon read, and so map, each page of the staging memory: save blocks, and
 * remove them. */
static bool touch(struct peer *p)
{
	struct wire_header header = {.type = WIRE_SAVE, .count = BATCH};
	struct wire_save saves[BATCH] = {0};
	struct wire_key keys[BATCH];
	uint64_t at = 0;
	int r;

	for (uint32_t key = 0; at < STAGING && go_on(); key += BATCH) {
		peer_keys(keys, key, BATCH);
		for (unsigned i = 0; i < BATCH; i++) {
			memcpy(saves[i].key, keys[i].key, 32);
			saves[i].len = 32;
			saves[i].offset = at + i * p->payload;
		}
		r = peer_do(p, WIRE_RESERVE, key, BATCH);
		if (r == 0)
			r = peer_saved(p, peer_send(p, &header, saves,
						    sizeof(saves), -1));
		(void)peer_do(p, WIRE_EVICT, key, BATCH);
		if (r == 0)
			at += BATCH * p->payload;
		else if (r == -EBUSY || r == -ENOSPC)
			usleep(1000);
		else
			return false;
	}
	return true;
}

/* Offer two files in turns: the daemon maps one, and unmaps the other. */
static void remap(void)
{
	struct wire_staging staging = {STAGING};
	struct peer *p = &peers[0];
	unsigned n = 0;
	int fds[2], r;

	for (unsigned i = 0; i < 2; i++) {
		fds[i] = memfd_create("staging",
				      MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fallocate(fds[i], 0, 0, STAGING) < 0 ||
		    fcntl(fds[i], F_ADD_SEALS,
			  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) <
			    0)
			return;
	}
	if (!join_large(p, "remap"))
		return;
	do
		r = peer_call(
			p,
			&(struct wire_header){.type = WIRE_STAGING, .count = 1},
			&staging, sizeof(staging), fds[n++ % 2]);
	while (r == 0 && touch(p) && go_on());
	printf("%u\n", n);
}

/* ---- the user who works during the attack ---- */

enum { CONNECT, PROBE, SAVE, DURABLE, ACQUIRE, OPEN_READ, STATFS, WORKS };

static const char *const works[WORKS] = {"connect",	"probe",   "save",
					 "save, flush", "acquire", "open, read",
					 "statfs"};
static double *took[WORKS];
static size_t n_took[WORKS], n_failed[WORKS];
static int why[WORKS];

static void note(unsigned what, uint64_t began, long r)
{
	size_t n = n_took[what]++;

	if (n % 4096 == 0)
		took[what] = realloc(took[what], (n + 4096) * sizeof(double));
	took[what][n] = (double)(kv_now_ns() - began) / 1e6;
	if (r < 0) {
		n_failed[what]++;
		why[what] = (int)r;
	}
}

static long open_and_read(const char *path)
{
	static char bytes[1 << 17];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	long n;

	if (fd < 0)
		return -errno;
	n = read(fd, bytes, sizeof(bytes));
	close(fd);
	return n < 0 ? -errno : n > 65536 ? 0 : -ENODATA;
}

/* Return the path of block @key, whose key peer_keys makes. */
static void path_of(uint32_t key, char *ret_path, size_t room)
{
	struct wire_key wire;
	int n = snprintf(ret_path, room, "%s/%s/%02x/", mount, name, key & 255);

	peer_keys(&wire, key, 1);
	for (unsigned i = 0; i < wire.len; i++)
		n += snprintf(ret_path + n, room - (size_t)n, "%02x",
			      wire.key[i]);
}

static long save(struct peer *p, uint32_t key)
{
	long r;

	/* EBUSY: the daemon is still making memory; retry as the library
	 * does. */
	while ((r = peer_save(p, key, 1)) == -EBUSY && go_on())
		usleep(1000);
	return r == -EBUSY ? 0 : r;
}

static void work_once(struct peer *p, uint32_t turn)
{
	uint32_t key = turn % KEYS;
	struct statvfs fs;
	uint64_t began;
	struct peer q;
	char path[512];
	long r;

	began = kv_now_ns();
	r = peer_connect(&q, sock) ? peer_hello(&q) : -errno;
	note(CONNECT, began, r);
	peer_close(&q);
	began = kv_now_ns();
	note(PROBE, began, peer_probe(p, key));
	(void)peer_do(p, WIRE_EVICT, key, 1);
	began = kv_now_ns();
	note(SAVE, began, save(p, key));
	(void)peer_do(p, WIRE_EVICT, KEYS + key, 1);
	began = kv_now_ns();
	r = save(p, KEYS + key);
	if (r == 0)
		r = peer_do(p, WIRE_FLUSH, KEYS + key, 1);
	note(DURABLE, began, r);
	began = kv_now_ns();
	r = peer_acquire(p, key, 1);
	note(ACQUIRE, began,
	     r == 1   ? 0
	     : r == 0 ? PEER_ITEMS(p, struct wire_place)[0].status
		      : r);
	(void)peer_release(p, p->tag);
	path_of(key, path, sizeof(path));
	began = kv_now_ns();
	note(OPEN_READ, began, open_and_read(path));
	began = kv_now_ns();
	note(STATFS, began, statvfs(mount, &fs) < 0 ? -errno : 0);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int print_work(unsigned what)
{
	size_t n = n_took[what];

	qsort(took[what], n, sizeof(double), by_size);
	printf("%-11s %6zu times: p50 %7.2f p99 %7.2f max %7.2f ms, "
	       "%zu failed%s%s\n",
	       works[what], n, took[what][n / 2], took[what][n * 99 / 100],
	       took[what][n - 1], n_failed[what], n_failed[what] ? ": " : "",
	       n_failed[what] ? strerror(-why[what]) : "");
	fflush(stdout);
	return n_failed[what] > 0;
}

static int work(void)
{
	static struct peer p;
	int failed = 0;

	if (!join(&p, 1 << 16)) {
		printf("cannot begin\n");
		return 1;
	}
	for (uint32_t turn = 0; go_on(); turn++) {
		work_once(&p, turn);
		usleep(2000);
	}
	for (unsigned i = 0; i < WORKS; i++)
		failed += print_work(i);
	return failed > 0;
}

/* ---- readers of the SSD ---- */

#define COLD 192 /* number of blocks, whose bytes are three times dram= */
#define AT_ONCE 8
#define READERS 3

static int read_cold(unsigned reader)
{
	static struct peer p;
	uint64_t began;
	long r;

	if (!join_large(&p, "read"))
		return 1;
	for (uint32_t at = reader * COLD / READERS; go_on(); at += AT_ONCE) {
		began = kv_now_ns();
		r = peer_acquire(&p, at % COLD, AT_ONCE);
		note(ACQUIRE, began, r == 0 ? -EAGAIN : r);
		(void)peer_release(&p, p.tag);
	}
	return print_work(ACQUIRE);
}

/* Save blocks that do not fit into memory, then acquire them in turns. */
static int read_all(void)
{
	static struct peer p;
	int r = join_large(&p, "read") ? peer_staging(&p, 8 << 20) : -EIO;
	int status, failed = 0;

	for (uint32_t at = 0; r == 0 && at < COLD; at += AT_ONCE) {
		while ((r = peer_save(&p, at, AT_ONCE)) == -EBUSY && go_on()) {
			/* Some of the blocks may be reserved. */
			(void)peer_do(&p, WIRE_DROP, at, AT_ONCE);
			usleep(1000);
		}
		if (r == 0)
			r = peer_do(&p, WIRE_FLUSH, at, AT_ONCE);
	}
	if (r < 0) {
		printf("cannot begin: %s\n", strerror(-r));
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned i = 0; i < READERS; i++)
		if (fork() == 0)
			_exit(read_cold(i));
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	sock = argv[2];
	mount = argv[3];
	snprintf(name, sizeof(name), "siege-%u", getuid());
	until = kv_now_ns() + (uint64_t)atoi(argv[4]) * 1000000000u;
	if (strcmp(argv[1], "work") == 0)
		return work();
	if (strcmp(argv[1], "read") == 0)
		return read_all();
	if (strcmp(argv[1], "remap") == 0)
		remap();
	else
		attack();
	return 0;
}
