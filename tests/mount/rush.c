/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rush.c - users who save faster than the SSD writes, or begin blocks that they do not
 * finish; and a user who saves now and then.
 *
 *     rush saves SOCKET BYTES   save durable blocks of BYTES, twelve at once,
 *                               until the input ends
 *     rush turnover SOCKET N            N times, save 512 durable blocks of 64 KiB,
 *                                       each reported as durable
 *     rush sizes SOCKET N               begin N blocks, each of another size, and
 *                                       hold them until the input ends
 *     rush work SOCKET N                save N blocks of 64 KiB, each made durable;
 *                                       print failures and times
 *
 * OWNS      its connections, and spaces rush-UID-BYTES.
 *
 * LOCKING   none: one thread a process.
 */
#include <signal.h>
#include <sys/wait.h>

/* On a slow machine the daemon may need tens of seconds to answer. */
#define PEER_WAIT_MS 60000
#include "tests/fs/peer.h"

#define SAVERS 12
#define MIB (1u << 20)
#define PATIENCE_NS UINT64_C(5000000000)

static const char *sock;

static bool join(struct peer *p, uint32_t bytes, uint32_t n)
{
	char name[64], layout[128];

	snprintf(name, sizeof(name), "rush-%u-%u", getuid(), bytes);
	snprintf(layout, sizeof(layout),
		 "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\","
		 "\"shape\":[%u]}]}",
		 bytes);
	return peer_connect(p, sock) && peer_hello(p) == 0 &&
	       peer_space(p, name, layout, WIRE_SPACE_CREATE, 0700) == 0 &&
	       peer_staging(p, (uint64_t)bytes * n) == 0;
}

static bool input_ended(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	return poll(&input, 1, 0) != 0;
}

static int saves(uint32_t bytes)
{
	static struct peer p;
	const struct wire_header must = {.type = WIRE_RESERVE,
					 .flags = WIRE_MUST};
	uint32_t first = (uint32_t)getpid() << 16;
	const uint32_t n = bytes < MIB ? 16 : 2;

	if (!join(&p, bytes, n))
		return 1;
	for (; !input_ended(); first += n) {
		/* A SAVE reports once more the blocks that RESERVE has
		 * refused. */
		if (peer_each(&p, &must, first, n) == -EPIPE)
			return 1;
		(void)peer_saved(&p, peer_send_saves(&p, first, n));
	}
	return 0;
}

static int all_save(uint32_t bytes)
{
	for (int i = 0; i < SAVERS; i++)
		if (fork() == 0)
			exit(saves(bytes));
	while (wait(NULL) > 0)
		;
	return 0;
}

static int turnover(uint32_t n)
{
	static struct peer p;
	const struct wire_header must = {.type = WIRE_RESERVE,
					 .flags = WIRE_MUST};
	const struct wire_status *statuses = PEER_ITEMS(&p, struct wire_status);
	bool sealed[WIRE_BATCH];
	unsigned lost = 0, evicted = 0;

	if (!join(&p, 65536, WIRE_BATCH))
		return 1;
	for (uint32_t first = 0; first < n * WIRE_BATCH; first += WIRE_BATCH) {
		while (peer_each(&p, &must, first, WIRE_BATCH) == -EBUSY)
			usleep(1000);
		(void)peer_saved(&p, peer_send_saves(&p, first, WIRE_BATCH));
		for (uint32_t i = 0; i < WIRE_BATCH; i++)
			sealed[i] = statuses[i].status == 0;
		(void)peer_do(&p, WIRE_FLUSH, first, WIRE_BATCH);
		for (uint32_t i = 0; i < WIRE_BATCH; i++) {
			evicted += statuses[i].status == WIRE_EVICTED;
			lost += sealed[i] && statuses[i].status < 0;
		}
	}
	printf("%u of %u lost, %u evicted since\n", lost, n * WIRE_BATCH,
	       evicted);
	return lost > 0;
}

static int sizes(uint32_t n)
{
	struct peer *p = calloc(n, sizeof(*p));
	uint32_t begun = 0, bytes = 1024;
	char end;

	for (uint32_t i = 0; p && i < n; i++) {
		if (!join(&p[i], bytes, 1))
			break;
		begun += peer_do(&p[i], WIRE_RESERVE, i, 1) == 0;
		bytes += bytes / 4;
	}
	printf("%u\n", begun);
	fflush(stdout);
	return read(0, &end, 1) < 0;
}

static int work(uint32_t n)
{
	static struct peer p;
	unsigned failed = 0;
	uint64_t longest = 0;

	if (!join(&p, 65536, 1)) {
		printf("cannot begin\n");
		return 1;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t began = kv_now_ns();
		int r;

		/* EBUSY: memory is being made.  ENOSPC: the disk wrote nothing for a
		 * second, which other programs on this machine may cause. */
		while ((r = peer_save(&p, i, 1)) == -EBUSY ||
		       (r == -ENOSPC && kv_now_ns() - began < PATIENCE_NS))
			usleep(1000);
		if (r == 0)
			r = peer_do(&p, WIRE_FLUSH, i, 1);
		if (r < 0 && failed++ < 3)
			printf("%u: %s, ", i, strerror(-r));
		longest = KV_MAX(longest, kv_now_ns() - began);
		usleep(10000);
	}
	printf("%u of %u failed, the longest took %.0f ms\n", failed, n,
	       (double)longest / 1e6);
	return failed > 0;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc < 4)
		return 2;
	sock = argv[2];
	if (strcmp(argv[1], "work") == 0)
		return work((uint32_t)atoi(argv[3]));
	if (strcmp(argv[1], "turnover") == 0)
		return turnover((uint32_t)atoi(argv[3]));
	if (strcmp(argv[1], "sizes") == 0)
		return sizes((uint32_t)atoi(argv[3]));
	return all_save((uint32_t)atoi(argv[3]));
}
