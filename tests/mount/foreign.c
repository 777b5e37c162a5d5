/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign.c - measure whether the time of a call reveals to a user that another user has a
 * block.
 *
 *     foreign save SOCKET      as the owner: save blocks; print the space's id
 *     foreign ask SOCKET MOUNT ID PAIRS [BOUND]
 *                              as another user; fail beyond the bound
 *
 * A key that the owner has and a key that no user has are asked for in turn, in random
 * order.  AUC is the probability that the first call takes longer; 0.5: no difference.  The
 * asker's own blocks, measured the same way, show that the method detects a difference.
 *
 * OWNS      the private spaces "foreign" of the owner and "own" of the asker.
 *
 * LOCKING   none: one thread.
 */
#include <sys/stat.h>
#include <sys/xattr.h>

#include "tests/fs/peer.h"

#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4096]}]}"
#define KEYS 64u
#define OWN 1000u    /* first key in the own space of the user that measures */
#define ABSENT 2000u /* first of the keys that no user has saved */

static struct peer peer;
static const char *mount;
static uint32_t foreign_id;
static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 32) % n;
}

static bool join(const char *sock, const char *space, uint32_t first)
{
	if (!peer_connect(&peer, sock) || peer_hello(&peer) < 0 ||
	    peer_space(&peer, space, LAYOUT, WIRE_SPACE_CREATE, 0700) < 0 ||
	    peer_staging(&peer, KEYS << 12) < 0)
		return false;
	return peer_save(&peer, first, KEYS) == 0 &&
	       peer_do(&peer, WIRE_FLUSH, first, KEYS) == 0;
}

/* ---- calls ---- */

static void path_of(const char *space, uint32_t key, char path[512])
{
	struct wire_key wire;
	int n = snprintf(path, 512, "%s/%s/%02x/", mount, space, key & 255);

	peer_keys(&wire, key, 1);
	for (unsigned i = 0; i < wire.len; i++)
		n += snprintf(path + n, 512 - (size_t)n, "%02x", wire.key[i]);
}

static void probe(uint32_t key)
{
	(void)peer_probe(&peer, key);
}

static void probe_foreign(uint32_t key)
{
	const uint32_t own = peer.space;

	peer.space = foreign_id;
	(void)peer_probe(&peer, key);
	peer.space = own;
}

static void acquire(uint32_t key)
{
	(void)peer_acquire(&peer, key, 1);
	(void)peer_release(&peer, peer.tag);
}

static void reserve(uint32_t key)
{
	(void)peer_do(&peer, WIRE_RESERVE, key, 1);
	(void)peer_do(&peer, WIRE_DROP, key, 1);
}

static void flush(uint32_t key)
{
	(void)peer_do(&peer, WIRE_FLUSH, key, 1);
}

static void evict(uint32_t key)
{
	(void)peer_do(&peer, WIRE_EVICT, key, 1);
}

static void pin(uint32_t key)
{
	(void)peer_each(&peer,
			&(struct wire_header){.type = WIRE_PIN, .arg = 1}, key,
			1);
}

static void stat_in(const char *space, uint32_t key)
{
	char path[512];
	struct stat st;

	path_of(space, key, path);
	(void)stat(path, &st);
}

static void stat_own(uint32_t key)
{
	stat_in("own", key);
}

static void stat_foreign(uint32_t key)
{
	stat_in("foreign", key);
}

static void open_own(uint32_t key)
{
	char path[512];
	int fd;

	path_of("own", key, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
}

static void xattr_foreign(uint32_t key)
{
	char path[512], value[64];

	path_of("foreign", key, path);
	(void)getxattr(path, "user.kvfs.tier", value, sizeof(value));
}

static const struct call {
	const char *name;
	void (*call)(uint32_t key);
} calls[] = {
	{"probe", probe},
	{"probe, its space", probe_foreign},
	{"acquire", acquire},
	{"reserve", reserve},
	{"flush", flush},
	{"evict", evict},
	{"pin", pin},
	{"stat", stat_own},
	{"open", open_own},
	{"stat, its space", stat_foreign},
	{"getxattr, its space", xattr_foreign},
};

/* ---- times ---- */

struct timed {
	uint64_t ns;
	bool there;
};

static int by_time(const void *a, const void *b)
{
	const struct timed *x = a, *y = b;

	return (x->ns > y->ns) - (x->ns < y->ns);
}

/* A pair of equal times counts half. */
static double auc(struct timed *times, size_t n)
{
	double below = 0, sum = 0, there = 0;

	qsort(times, n, sizeof(*times), by_time);
	for (size_t i = 0, j; i < n; i = j) {
		double t = 0, f = 0;

		for (j = i; j < n && times[j].ns == times[i].ns; j++)
			*(times[j].there ? &t : &f) += 1;
		sum += t * (below + f / 2);
		below += f;
		there += t;
	}
	return sum / (below * there);
}

static uint64_t time_of(const struct call *call, uint32_t key)
{
	uint64_t began = kv_now_ns();

	call->call(key);
	return kv_now_ns() - began;
}

/* Return the AUC of the keys from @first on against keys that no user has. */
static double measure(const struct call *call, uint32_t first, size_t pairs)
{
	struct timed *times = calloc(2 * pairs, sizeof(*times));
	double result;

	for (size_t i = 0; i < pairs; i++) {
		const unsigned swap = random_below(2);

		for (unsigned j = 0; j < 2; j++) {
			struct timed *timed = &times[2 * i + j];

			timed->there = (j ^ swap) == 0;
			timed->ns =
				time_of(call, (timed->there ? first : ABSENT) +
						      random_below(KEYS));
		}
	}
	result = auc(times, 2 * pairs);
	free(times);
	return result;
}

static int ask(size_t pairs, double bound)
{
	int failed = 0;
	double own;

	for (size_t i = 0; i < KV_ARRAY_LEN(calls); i++) {
		double it = measure(&calls[i], 0, pairs);
		bool tells = it < 0.5 - bound || it > 0.5 + bound;

		printf("%-20s AUC %.3f%s\n", calls[i].name, it,
		       tells ? "  TELLS" : "");
		failed += tells;
	}
	own = measure(&(const struct call){"stat", stat_own}, OWN, pairs);
	printf("%-20s AUC %.3f, of one's own\n", "stat", own);
	if (own > 0.5 - bound && own < 0.5 + bound) {
		printf("FAILED: the ruler measures nothing\n");
		failed++;
	}
	return failed > 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "save") == 0) {
		if (!join(argv[2], "foreign", 0))
			return 1;
		printf("%u\n", peer.space);
		return 0;
	}
	if (argc < 6)
		return 2;
	mount = argv[3];
	foreign_id = (uint32_t)atoi(argv[4]);
	if (!join(argv[2], "own", OWN))
		return 1;
	return ask((size_t)atoi(argv[5]), argc > 6 ? atof(argv[6]) : 0.02);
}
