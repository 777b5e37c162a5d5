/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cap.c - work on a store, or only watch it, and measure it all the time: the store must
 * never hold more bytes than ssd= allows.
 *
 *   cap watch STORE CAP              until SIGTERM
 *   cap open STORE CAP OLD           only open the store, and close it
 *   cap fill STORE CAP OLD N BYTES   save N blocks of BYTES
 *   cap thin STORE CAP OLD KEEP      remove all but every KEEPth block
 *   cap churn STORE CAP OLD SECONDS SEED  save and remove blocks of all sizes
 *
 * OLD is the cap that the store had before; it holds until the store is open.  Prints the
 * largest size, and exits 1 if a size was above the cap.
 *
 * Each file below STORE counts with the larger of its length and its blocks on disk,
 * including directories and unnamed files.
 *
 * OWNS      the thread that measures.
 *
 * LOCKING   none: the limit is atomic, one thread uses the rest.
 */
#include <ftw.h>
#include <stdatomic.h>

#include "cache/cache.h"
#include "common/copy.h"
#include "tests/crash/client.h"
#include "tests/cache/wait.h"

#define SAMPLE_US 2000
#define SPACE "cap"

struct sum {
	uint64_t bytes;
	unsigned n;
	/* inodes seen in this walk of the store, so that a file renamed
	 * meanwhile counts once */
	uint64_t seen[4096];
};

static _Atomic uint64_t limit;
static _Atomic bool enough;
static uint64_t samples, most, over;
static const char *store;
static uint64_t seed;
static struct sum sum;

static int add(const char *path, const struct stat *st, int flag,
	       struct FTW *ftw)
{
	uint64_t held = (uint64_t)st->st_blocks * 512;

	(void)path;
	(void)ftw;
	if (flag == FTW_NS)
		return 0;
	for (unsigned i = 0; i < sum.n; i++)
		if (sum.seen[i] == st->st_ino)
			return 0;
	if (sum.n < KV_ARRAY_LEN(sum.seen))
		sum.seen[sum.n++] = st->st_ino;
	sum.bytes += KV_MAX(held, (uint64_t)st->st_size);
	return 0;
}

static void sample(void)
{
	uint64_t allowed = limit;

	sum.bytes = sum.n = 0;
	nftw(store, add, 16, FTW_PHYS);
	samples++;
	most = KV_MAX(most, sum.bytes);
	if (sum.bytes > allowed && over++ < 5)
		printf("%llu bytes, %llu allowed\n",
		       (unsigned long long)sum.bytes,
		       (unsigned long long)allowed);
}

static void *measure(void *arg)
{
	while (!enough) {
		sample();
		usleep(SAMPLE_US);
	}
	return arg;
}

/* Save block @number, which has @bytes bytes. */
static void save(struct kv_cache *cache, struct kv_space *space,
		 uint64_t number, uint64_t bytes)
{
	struct kv_key key = {.len = 16};
	struct kv_meta meta = {.tokens = 16};
	uint64_t mixed = content_mix(number);
	struct kv_digest digest;
	struct kv_fill *fill;
	int r;

	memcpy(key.b, &mixed, 8);
	memcpy(key.b + 8, &number, 8);
	while ((r = kv_fill_begin(cache, space, &key, bytes, &fill)) == -EBUSY)
		usleep(1000); /* the arena is growing: try again */
	if (r == 0) {
		memset(kv_fill_data(fill), (int)mixed, bytes);
		digest = kv_digest_of(kv_fill_data(fill), bytes);
		r = kv_fill_seal(cache, fill, &key, &meta, 8, &digest);
	}
	if (r < 0 && r != -ENOSPC && r != -EEXIST && r != -EALREADY)
		client_must(r, "save");
}

/* A sync may fail because the cache is full. */
static void sync_all(struct kv_cache *cache, struct kv_space *space)
{
	int r = kv_space_sync(cache, space);

	client_must(r == -ENOSPC ? 0 : r, "sync");
}

static void fill(struct kv_cache *cache, struct kv_space *space, char **argv)
{
	for (long i = 0; i < atol(argv[0]); i++) {
		save(cache, space, (uint64_t)i, strtoull(argv[1], NULL, 0));
		if (i % 256 == 255)
			sync_all(cache, space);
	}
	sync_all(cache, space);
}

/* Remove the blocks whose number is no multiple of @keep. */
static void thin(struct kv_cache *cache, struct kv_space *space, long keep)
{
	struct kv_block *block;
	uint64_t *ids;
	long count = 0;
	size_t n;

	for (unsigned byte = 0; byte < 256; byte++) {
		if (kv_dir_list(cache, space, (uint8_t)byte, &ids, &n) < 0)
			continue;
		for (size_t i = 0; i < n; i++) {
			if (count++ % keep == 0 ||
			    kv_block_get_id(cache, ids[i], &block) < 0)
				continue;
			kv_block_remove(cache, block);
			kv_block_put(cache, block);
		}
		free(ids);
	}
	sync_all(cache, space);
}

static void churn(struct kv_cache *cache, struct kv_space *space, char **argv)
{
	uint64_t end = kv_now_ns() + (uint64_t)atol(argv[0]) * SECOND;
	uint64_t number = kv_now_ns();

	seed = strtoull(argv[1], NULL, 0);
	while (kv_now_ns() < end) {
		long shift = client_random(&seed, 10);
		uint64_t bytes = 4096u << shift;

		for (long i = client_random(&seed, 64) >> (shift / 2); i >= 0;
		     i--)
			save(cache, space, number++,
			     bytes - (uint64_t)client_random(&seed, 2048));
		switch (client_random(&seed, 12)) {
		case 0:
			thin(cache, space, 2 + client_random(&seed, 6));
			break;
		case 1:
		case 2:
			sync_all(cache, space);
		}
	}
}

static void work(const char *verb, char **argv)
{
	struct kv_cache_config config = {.store = store,
					 .dram = 32 << 20,
					 .ssd = strtoull(argv[0], NULL, 0),
					 .ssd_given = true,
					 .segment = 8 << 20,
					 .hugepages = KV_HUGE_OFF,
					 .evict = "flru"};
	struct kv_space *space;
	struct kv_cache *cache;
	char *why = NULL;
	int r;

	limit = KV_MAX(config.ssd, strtoull(argv[1], NULL, 0));
	r = kv_cache_open(&config, &cache, &why);
	client_must(r, why != NULL ? why : "open");
	limit = config.ssd;
	r = kv_space_create(cache, SPACE, 0, 0, 0700, &space);
	client_must(r == -EEXIST ? 0 : r, "space");
	if (strcmp(verb, "fill") == 0)
		fill(cache, space, argv + 2);
	else if (strcmp(verb, "thin") == 0)
		thin(cache, space, atol(argv[2]));
	else if (strcmp(verb, "churn") == 0)
		churn(cache, space, argv + 2);
	kv_cache_close(cache);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 4)
		return 2;
	client_until_term();
	store = argv[2];
	limit = UINT64_MAX;
	if (strcmp(argv[1], "watch") == 0)
		limit = strtoull(argv[3], NULL, 0);
	client_must(-pthread_create(&thread, NULL, measure, NULL), "thread");
	if (strcmp(argv[1], "watch") != 0)
		work(argv[1], argv + 3);
	while (strcmp(argv[1], "watch") == 0 && !client_stop)
		usleep(SAMPLE_US);
	enough = true;
	pthread_join(thread, NULL);
	sample();
	printf("%s: at most %llu bytes of %llu, now %llu; measured %llu times, "
	       "too much %llu times\n",
	       argv[1], (unsigned long long)most, (unsigned long long)limit,
	       (unsigned long long)sum.bytes, (unsigned long long)samples,
	       (unsigned long long)over);
	return over != 0;
}
